/* The heads of a model as three grids of buttons, one for each kind of attention; each shows its map. */

import { html, plural } from "./dom.js";

export const NAMES = { encoder: "Encoder", cross: "Cross-attention", decoder: "Decoder" }; // in the order of the page
const ABOUT = {
  encoder: "source words attend to source words", cross: "the translation attends to the source",
  decoder: "the translation attends to what is written",
};
const DWELL = 90; // milliseconds that a pointer rests on a head before it opens: a way to the next panel opens nothing

/* sites: what listSites gives; roles(head), name(head): what is known of it, and what it is called;
   onpress(head); onlook(head, pointing): the head has the focus, or a pointer rests on it;
   folded: { kind: why all maps of this kind look alike }: of these only the first layer is shown, until it is asked for.
   Gives { nodes, tiles, draw, mark }: a node for each kind, a button for each head, draw(maps, gates), and
   mark(changed): for each head the number of words that change without it. */
export function createGrids({ sites, roles, name, onpress, onlook = () => {}, folded = {} }) {
  const tiles = [];
  let changes = [];
  const headAt = (event) => { const node = event.target.closest("[data-head]"); return node ? +node.dataset.head : null; };

  const nodes = Object.keys(NAMES).map((kind) => {
    const layers = sites.filter((site) => site.kind === kind), wide = layers[0].heads;
    const lines = layers.map((site) => html("div", { class: "row", role: "row" },
      html("span", { class: "layer", role: "rowheader" }, html("span", { class: "hidden" }, "layer "), site.layer),
      Array.from({ length: site.heads }, (_, i) => {
        const head = site.first + i, canvas = html("canvas", { width: 1, height: 1, "aria-hidden": "true" });
        const button = html("button", { type: "button", "data-head": head, tabindex: site === layers[0] && !i ? 0 : -1 }, canvas);
        if (roles(head).some(({ quiet }) => !quiet) && kind === "encoder") button.classList.add("named");
        tiles[head] = button;
        return html("span", { role: "gridcell" }, button);
      })));
    const grid = html("div", { class: "tiles", role: "grid", "aria-label": `${NAMES[kind]}: ${layers.length} layers of ${wide} heads, the first layer on top`, style: `--heads:${wide}` }, lines);
    grid.addEventListener("click", (event) => { const head = headAt(event); if (head !== null) onpress(head); });
    grid.addEventListener("focusin", (event) => { const head = headAt(event); if (head !== null) onlook(head, false); });
    let resting;
    grid.addEventListener("pointerover", (event) => {
      clearTimeout(resting);
      const head = headAt(event);
      if (head !== null && event.pointerType === "mouse") resting = setTimeout(() => onlook(head, true), DWELL);
    });
    grid.addEventListener("pointerleave", () => clearTimeout(resting));
    grid.addEventListener("keydown", (event) => move(event, layers.filter((_, layer) => !lines[layer].hidden)));
    return html("div", { class: `grid ${kind}` }, html("h3", {}, NAMES[kind], html("span", { class: "count" })), html("p", {}, ABOUT[kind]), grid,
      folded[kind] && fold(lines.slice(1), folded[kind]));
  });

  function fold(lines, why) {
    const button = html("button", { type: "button" });
    const set = (open) => {
      for (const line of lines) line.hidden = !open;
      button.setAttribute("aria-expanded", String(open));
      button.textContent = open ? "Show one layer" : `Show all ${lines.length + 1} layers`;
    };
    button.addEventListener("click", () => set(lines[0].hidden));
    set(false);
    return html("div", { class: "fold" }, html("p", {}, why), button);
  }

  function move(event, layers) {
    const head = headAt(event), row = layers.findIndex(({ first, heads }) => head >= first && head < first + heads);
    const column = head - layers[row].first, last = layers[row].heads - 1;
    const to = { ArrowUp: [row - 1, column], ArrowDown: [row + 1, column], ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1], Home: [row, 0], End: [row, last] }[event.key];
    if (!to) return;
    event.preventDefault();
    const within = (value, most) => Math.max(0, Math.min(most, value));
    tiles[head].tabIndex = -1;
    const next = tiles[layers[within(to[0], layers.length - 1)].first + within(to[1], last)];
    next.tabIndex = 0;
    next.focus();
  }

  const inkOf = (node) => getComputedStyle(node).color.match(/[\d.]+/g).slice(0, 3).map(Number);

  function draw(maps, gates) {
    for (const [at, kind] of Object.keys(NAMES).entries()) {
      const [r, g, b] = inkOf(nodes[at]), mine = sites.filter((site) => site.kind === kind);
      const heads = mine.flatMap(({ first, heads: many }) => Array.from({ length: many }, (_, i) => first + i));
      for (const head of heads) {
        const rows = maps[head], wide = rows.at(-1).length, canvas = tiles[head].firstChild;
        canvas.width = wide;
        canvas.height = rows.length;
        const image = new ImageData(wide, rows.length);
        rows.forEach((row, y) => row.forEach((weight, x) => image.data.set([r, g, b, 255 * Math.sqrt(weight)], 4 * (y * wide + x))));
        canvas.getContext("2d").putImageData(image, 0, 0);
        label(head, gates[head] > 0);
      }
      nodes[at].querySelector(".count").textContent = `${heads.filter((head) => gates[head] > 0).length} of ${heads.length} on`;
    }
  }

  function label(head, on) {
    const role = roles(head)[0];
    tiles[head].classList.toggle("out", !on);
    tiles[head].setAttribute("aria-pressed", String(on));
    const changed = changes[head] ? `; alone, it changes ${plural(changes[head], "word")} of this sentence` : "";
    tiles[head].setAttribute("aria-label", `${name(head)}, ${on ? "on" : "off"}${role ? `: ${role.text}` : ""}${changed}`);
  }

  function mark(changed) {
    changes = changed;
    tiles.forEach((tile, head) => {
      if (changed[head]) tile.parentNode.dataset.changes = changed[head];
      else delete tile.parentNode.dataset.changes;
      label(head, tile.getAttribute("aria-pressed") === "true");
    });
  }

  return { nodes, tiles, draw, mark };
}
