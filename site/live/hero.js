/* The first page's part of the model: a sentence, its translation, a button for each head. A still until somebody touches
   it, because the weights are some seven million bytes; then alive, and whatever was pressed before is done. */

import { $, html, plural } from "./dom.js";
import { createGrids, NAMES } from "./grids.js";
import { tensorsOf } from "./half.js";
import { createLexicon } from "./lexicon.js";
import { createModel, countHeads, listSites } from "./organism.js";
import { createPresets } from "./presets.js";
import { theme } from "./theme.js";
import { translated, verdict } from "./words.js";

const FOLDER = "live/"; // where the data of the live page are

export function main() {
  theme($("theme"));
  const card = $("hero"), waiting = [];
  let act = null, asked = false;

  /* Does something with the model, once it is there. */
  function want(deed) {
    if (act) deed(act);
    else {
      if (deed) waiting.push(deed);
      load();
    }
  }

  async function load() {
    if (asked) return;
    asked = true;
    $("hero-state").textContent = "The model is loading …";
    try {
      for (const name of ["course.js", "weights.js"]) await bring(FOLDER + name);
    } catch {
      $("hero-state").textContent = "The files of the model were not found beside this page.";
      return;
    }
    act = start(globalThis.headtoolsLive);
    for (const deed of waiting) deed(act);
  }

  for (const name of ["pointerover", "focusin"]) card.addEventListener(name, load, { once: true });
  for (const button of card.querySelectorAll("[data-do]")) {
    button.addEventListener("click", () => want((model) => model[button.dataset.do](button.dataset)));
  }
  $("hero-grids").addEventListener("click", (event) => {
    const still = event.target.closest(".still");
    if (!still) return;
    const { left, top, width, height } = still.getBoundingClientRect(), kind = Object.keys(NAMES).find((one) => still.closest(`.grid.${one}`));
    const place = [(event.clientX - left) / width, (event.clientY - top) / height];
    want((model) => model.pressAt(kind, place));
  });
}

function bring(address) {
  return new Promise((resolve, reject) => {
    const script = html("script", { src: address, onload: resolve });
    script.addEventListener("error", reject);
    document.head.append(script);
  });
}

/* Makes the card alive; gives what its buttons do. */
function start({ course, weights }) {
  const { config } = weights, sites = listSites(config), total = countHeads(config);
  const model = createModel({ config, tensors: tensorsOf(weights.half, weights.tensors) });
  const lexicon = createLexicon(course.language), phenomena = Object.keys(course.phenomena);
  const gates = new Float32Array(total).fill(1);
  const siteOf = (head) => sites.find(({ first, heads }) => head >= first && head < first + heads);
  const name = (head) => `${NAMES[siteOf(head).kind]} ${siteOf(head).layer}.${head - siteOf(head).first}`;
  const roles = (head) => course.rolesOfHeads[head].map((one) => course.roles[one]);
  const grids = createGrids({ sites, roles, name, onpress: (head) => change(() => (gates[head] = 1 - gates[head]), head) });
  let sentence;

  function choose(number) {
    const one = course.sentences[number], words = one.source.split(" ");
    sentence = { ...one, number, words, ids: lexicon.ids(words, config.end), needs: one.needs.map((of) => of.map((i) => phenomena[i])),
      right: one.target.split(" ").map((word) => lexicon.numbers.get(word)) };
  }

  function show(head) {
    const out = model.translate(sentence.ids, gates), said = out.words.filter((id) => id !== config.end);
    const { items, mistakes } = translated({ said, sentence, lexicon });
    const off = total - gates.reduce((a, b) => a + b), reasons = new Set(mistakes.flatMap(({ missed }) => missed));
    $("hero-source").textContent = sentence.source;
    $("hero-words").replaceChildren(...items);
    $("hero-verdict").className = `verdict ${mistakes.length ? "bad" : "good"}`;
    $("hero-verdict").replaceChildren(html("b", {}, verdict(mistakes, sentence)),
      ` with ${off ? `${plural(off, "head")} off` : `all ${total} heads on`}`);
    const about = head === undefined ? null : roles(head)[0]?.text ?? "no role of its own is known";
    $("hero-state").textContent = [about && `${name(head)}: ${about[0].toLowerCase()}${about.slice(1)}.`,
      mistakes.length ? `What is wrong: ${[...reasons].join(", ")}.` : about ? "" : "Press a square to switch a head off."].filter(Boolean).join(" ");
    grids.draw(out.maps, gates);
  }

  function change(edit, head) {
    edit();
    show(head);
  }

  const off = (heads, number = sentence.number) => change(() => {
    choose(number);
    gates.fill(1);
    heads.forEach((head) => (gates[head] = 0));
  }, heads.length === 1 ? heads[0] : undefined);
  $("hero-grids").replaceChildren(...grids.nodes);
  choose(course.first.sentence);
  show();
  document.addEventListener("recolour", () => show());
  $("hero").classList.add("alive");
  return {
    ...createPresets({ course, total, off }),
    allOn: () => change(() => gates.fill(1)),
    another: () => change(() => choose((sentence.number + 1) % course.sentences.length)),
    pressAt(kind, [x, y]) {
      const layers = sites.filter((site) => site.kind === kind), { first, heads } = layers[Math.floor(y * layers.length)];
      grids.tiles[first + Math.floor(x * heads)].click();
    },
  };
}
