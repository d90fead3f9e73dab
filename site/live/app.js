/* The page: a sentence, a gate for each head, and all that is drawn from them. */

import { $, html, percent, plural, svg } from "./dom.js";
import { tensorsOf } from "./half.js";
import { createModel, listSites, countHeads } from "./organism.js";
import { createLexicon } from "./lexicon.js";
import { createGrids, NAMES } from "./grids.js";
import { translated } from "./words.js";
import { createMeter } from "./background.js";
import { arcs, curves, inWords, map } from "./charts.js";
import { inside } from "./inside.js";
import { createSteps } from "./tour.js";
import { theme } from "./theme.js";

const SHORT = { encoder: "Encoder", cross: "Cross", decoder: "Decoder" };
const LONGEST = 40; // words of a reader's own sentence

export function main() {
  const data = globalThis.headtoolsLive;
  theme($("theme"));
  const begun = performance.now();
  const ready = () => start(data, begun);
  requestAnimationFrame(() => setTimeout(() => {
    const script = html("script", { src: "weights.js", onload: ready });
    script.addEventListener("error", () => ($("verdict").textContent = "weights.js was not found beside this page."));
    document.head.append(script);
  })); // after the first paint: the weights are nine tenths of the page
}

function start({ course, weights }, begun) {
  const { config } = weights, sites = listSites(config), total = countHeads(config);
  const tensors = tensorsOf(weights.half, weights.tensors), model = createModel({ config, tensors });
  const lexicon = createLexicon(course.language), phenomena = Object.keys(course.phenomena);
  const gold = course.sentences.map((one) => ({
    ...one, words: one.source.split(" "), ids: lexicon.ids(one.source.split(" "), config.end),
    right: one.target.split(" ").map((word) => lexicon.numbers.get(word)),
    needs: one.needs.map((of) => of.map((i) => phenomena[i])),
  }));
  const whole = new Float32Array(total).fill(1), gates = new Float32Array(total).fill(1);
  const siteOf = (head) => sites.find(({ first, heads }) => head >= first && head < first + heads);
  const kind = (head) => siteOf(head).kind;
  const nameOf = (head) => `${SHORT[kind(head)].toLowerCase()} ${siteOf(head).layer}.${head - siteOf(head).first}`;
  const titled = (head) => nameOf(head)[0].toUpperCase() + nameOf(head).slice(1);
  const rolesOf = (head) => course.rolesOfHeads[head].map((name) => course.roles[name]);

  let sentence, said, maps, mistakes = []; // what is translated, and how
  let shown = course.tour.neighbour.heads[0], view = "arcs", picked = null, pressed = null; // the head that is open
  let scope = "encoder", ranking = "gradient", kept = null; // kept: heads that stay by the ranking, null by hand
  let tour = null;

  const aligner = course.rolesOfHeads.findIndex((names) => names.includes("next source")); // tells what a word translates
  const strongest = (row) => row.indexOf(Math.max(...row));

  // ---- choosing a sentence ---------------------------------------------------------------------------------------

  function choose(number) {
    const one = gold[number];
    sentence = { ...one, number, gold: true };
    $("pick").value = number;
    translate();
  }

  function chooseWords(words) {
    const number = gold.findIndex(({ source }) => source === words.join(" "));
    if (number >= 0) return choose(number);
    const ids = lexicon.ids(words, config.end);
    const out = model.translate(ids, whole), right = out.words.filter((id) => id !== config.end);
    const from = right.map((_, i) => (aligner < 0 ? 0 : 1 + strongest(out.maps[aligner][i]))).map((at) => (at > words.length ? undefined : at));
    sentence = { words, ids, right, from, needs: null, gold: false, number: sentence?.number ?? 0 };
    $("pick").value = "own";
    translate();
  }

  function fillPicker() {
    const groups = new Map();
    gold.forEach(({ group, source }, i) => {
      if (!groups.has(group)) groups.set(group, []);
      groups.get(group).push([source.split(" ").length, i, source]);
    });
    $("pick").replaceChildren(html("option", { value: "own", hidden: true }, "Your own sentence"),
      ...[...groups].sort().map(([name, list]) => html("optgroup", { label: name },
        list.sort((a, b) => a[0] - b[0]).map(([, i, source]) => html("option", { value: i }, source)))));
    const order = [...$("pick").querySelectorAll("optgroup option")].map((option) => +option.value);
    const step = (by) => choose(order[(order.indexOf(sentence.number) + by + order.length) % order.length]);
    $("pick").addEventListener("change", () => choose(+$("pick").value));
    $("previous").addEventListener("click", () => step(-1));
    $("next").addEventListener("click", () => step(1));
  }

  function ownSentence() {
    const input = $("typed"), offers = $("offers");
    let active = -1;
    const close = () => { offers.hidden = true; active = -1; input.setAttribute("aria-expanded", "false"); input.removeAttribute("aria-activedescendant"); };
    const check = () => {
      const words = lexicon.split(input.value), unknown = lexicon.unknown(words);
      const open = input.value.slice(0, input.selectionStart).match(/\S*$/)[0]; // still being typed
      const wrong = unknown.filter((word) => word !== open || !lexicon.complete(word).length);
      $("unknown").textContent = wrong.length ? `Not in this language: ${wrong.join(", ")}.` : words.length > LONGEST ? `At most ${LONGEST} words.` : "";
      if (words.length && !unknown.length && words.length <= LONGEST) chooseWords(words);
    };
    const take = (word) => {
      const at = input.selectionStart, before = input.value.slice(0, at).replace(/\S*$/, `${word} `);
      input.value = before + input.value.slice(at).trimStart();
      input.setSelectionRange(before.length, before.length);
      close();
      check();
    };
    const offer = () => {
      const letters = input.value.slice(0, input.selectionStart).match(/[^\s.,]*$/)[0], fit = lexicon.complete(letters);
      close();
      offers.replaceChildren(...fit.map((word, i) => html("li", { id: `offer-${i}`, role: "option", "aria-selected": "false" }, word)));
      offers.hidden = !fit.length || (fit.length === 1 && fit[0] === letters);
      input.setAttribute("aria-expanded", String(!offers.hidden));
    };
    $("write").addEventListener("click", () => {
      const open = $("own").hidden;
      $("own").hidden = !open;
      $("write").setAttribute("aria-expanded", String(open));
      if (!open) return;
      input.value = `${sentence.words.join(" ")} `;
      input.focus();
    });
    input.addEventListener("input", () => { offer(); check(); });
    input.addEventListener("blur", () => setTimeout(close, 150));
    offers.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      const item = event.target.closest("li");
      if (item) take(item.textContent);
    });
    input.addEventListener("keydown", (event) => {
      if (offers.hidden) return;
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], items = [...offers.children];
      if (step) {
        active = (active + step + items.length) % items.length;
        items.forEach((item, i) => item.setAttribute("aria-selected", String(i === active)));
        input.setAttribute("aria-activedescendant", `offer-${active}`);
      } else if (event.key === "Enter" || (event.key === "Tab" && active >= 0)) take(items[Math.max(0, active)].textContent);
      else if (event.key === "Escape") close();
      else return;
      event.preventDefault();
    });
  }

  // ---- translating -----------------------------------------------------------------------------------------------

  function translate() {
    const before = performance.now();
    const out = model.translate(sentence.ids, gates);
    const spent = performance.now() - before;
    said = out.words.filter((id) => id !== config.end);
    maps = out.maps;
    globalThis.headtoolsLive.times = { ...globalThis.headtoolsLive.times, translation: spent };
    if (picked !== null && picked >= maps[shown].length) picked = null;
    showSource();
    showTranslation();
    showTiles();
    showHead();
    meter.want(gates);
    remember();
    tour?.changed();
  }

  function showSource() {
    $("source").replaceChildren(...sentence.words.flatMap((word, i) => {
      const twin = lexicon.twin(word), accented = word !== plainForm(word);
      const node = twin
        ? html("button", { type: "button", class: accented ? "accented" : null, "aria-pressed": String(accented), "aria-label": `${word}, accent`, "data-at": i + 1,
            onclick: () => { chooseWords(sentence.words.with(i, twin)); $("source").querySelector(`[data-at="${i + 1}"]`).focus(); } }, word)
        : html("span", { "data-at": i + 1 }, word);
      return [node, " "];
    }));
  }
  const plainForm = (word) => word.normalize("NFD").replace(/\p{M}/gu, "");

  function showTranslation() {
    const shownWords = translated({ said, sentence, lexicon });
    mistakes = shownWords.mistakes;
    $("words").replaceChildren(...shownWords.items);
    const off = total - gates.reduce((a, b) => a + b), reasons = new Map();
    for (const { missed } of mistakes) for (const one of missed) reasons.set(one, (reasons.get(one) ?? 0) + 1);
    const verdict = mistakes.length ? `${mistakes.length} of ${sentence.right.length} wrong` : "All right";
    $("verdict").className = `verdict ${mistakes.length ? "bad" : "good"}`;
    $("verdict").replaceChildren(html("b", {}, verdict), ` with ${off ? `${plural(off, "head")} off` : `all ${total} heads on`}`);
    const sorted = [...reasons].sort((a, b) => b[1] - a[1]);
    $("reading").replaceChildren(...(mistakes.length
      ? ["Missing: ", ...sorted.flatMap(([name, n], i) => [i ? ", " : "", html("b", {}, name), ` ${n}×`, course.phenomena[name] ? ` (${course.phenomena[name]})` : ""]),
        sentence.gold ? ". Below a wrong word stands the grammar's." : ". Below a wrong word stands what the whole model writes."]
      : [sentence.gold ? "Small: the source word. Large: what the model writes for it, equal to the grammar's translation." : "Your sentence, compared with what the whole model writes."]));
    if (mistakes.length && $("words").scrollWidth > $("words").clientWidth) {
      const first = $("words").querySelector(".wrong");
      $("words").scrollLeft = first.offsetLeft - $("words").offsetLeft - 30;
    }
  }

  for (const id of ["source", "words"]) {
    const light = (event) => {
      const at = event.type === "pointerover" ? event.target.closest("[data-at]")?.dataset.at : undefined;
      for (const node of document.querySelectorAll("#source [data-at], #words [data-at]")) node.classList.toggle("lit", node.dataset.at === at);
    };
    $(id).addEventListener("pointerover", light);
    $(id).addEventListener("pointerout", light);
  }

  // ---- heads -----------------------------------------------------------------------------------------------------

  const { nodes, tiles, draw } = createGrids({
    sites, roles: rolesOf, name: titled, onpress: (head) => press(head),
    onlook: (head, pointing) => { if (!pointing || !tour?.looking) look(head); },
  });

  const pressing = () => document.querySelector("[name=press]:checked").value;
  function press(head) {
    pressed = head;
    look(head);
    if (pressing() === "switch") change(() => (gates[head] = 1 - gates[head]));
    else tour?.changed();
  }

  /* Every change of gates by hand goes through here. */
  function change(edit) {
    edit();
    kept = null;
    translate();
  }

  const switchOff = (heads) => change(() => heads.forEach((head) => (gates[head] = 0)));
  const allOn = () => change(() => gates.fill(1));

  const showTiles = () => draw(maps, gates);
  document.addEventListener("recolour", () => showTiles());

  function buildRoles() {
    const holders = new Map();
    course.rolesOfHeads.forEach((names, head) => names.forEach((name) => {
      if (kind(head) !== "encoder") return;
      holders.set(name, [...(holders.get(name) ?? []), head]);
    }));
    const sorted = [...holders].sort((a, b) => course.roles[a[0]].quiet - course.roles[b[0]].quiet || b[1].at(-1) - a[1].at(-1));
    $("role").append(html("option", { value: "" }, "any"), ...sorted.map(([name, heads]) => html("option", { value: name }, `${course.roles[name].label} (${heads.length})`)));
    $("role").addEventListener("change", () => {
      const heads = holders.get($("role").value) ?? [];
      $("grids").classList.toggle("searching", heads.length > 0);
      tiles.forEach((tile, head) => tile.classList.toggle("found", heads.includes(head)));
      if (heads.length) look(heads.at(-1));
    });
  }

  // ---- one head --------------------------------------------------------------------------------------------------

  function look(head) {
    if (head !== shown) picked = null;
    shown = head;
    showHead();
  }

  function showHead() {
    const one = kind(shown), site = siteOf(shown), source = [...sentence.words, "end"], written = ["start", ...said.map(lexicon.word)];
    const rows = maps[shown], queries = one === "encoder" ? source : written.slice(0, rows.length), keys = one === "decoder" ? queries : source;
    tiles.forEach((tile, head) => tile.classList.toggle("shown", head === shown));
    $("look").dataset.kind = one;
    $("look-title").textContent = titled(shown);
    $("toggle").setAttribute("aria-pressed", String(gates[shown] > 0));
    $("toggle").setAttribute("aria-label", `${titled(shown)} is ${gates[shown] ? "on" : "off"}`);
    $("toggle").textContent = gates[shown] ? "On" : "Off";
    const texts = rolesOf(shown).map(({ text }) => text), more = texts.length - 2;
    $("look-role").textContent = texts.length ? `${texts.slice(0, 2).join(". ")}${more > 0 ? `, and ${plural(more, "more role")}` : ""}.` : "No role of its own is known.";
    const pick = (row) => { picked = picked === row && view !== "inside" ? null : row; showHead(); tour?.changed(); };
    const many = { rows, queries, keys };
    let drawing;
    if (view === "arcs") drawing = [arcs({ ...many, own: one !== "cross", picked, onpick: pick })];
    else if (view === "map") drawing = [map(many)];
    else {
      const query = picked ?? Math.min(1, rows.length - 1), target = [...said, config.end];
      const found = model.inspect(sentence.ids, target, gates, shown);
      const layerName = `${SHORT[one].toLowerCase()} layer ${site.layer}`;
      drawing = [inside({ found, query, queries, keys: keys.slice(0, found.weights[query].length), onpick: pick, layerName, head: shown - site.first })];
    }
    const focused = document.activeElement?.id;
    $("view").replaceChildren(...drawing);
    $("told").replaceChildren(...inWords(rows, queries, keys).map(({ query, key, weight }) => html("li", {}, query, " → ", key, html("span", {}, percent(weight)))));
    if (focused === "inside-query") $(focused)?.focus();
  }

  // ---- how many heads --------------------------------------------------------------------------------------------

  const scoped = () => (scope === "all" ? tiles.map((_, head) => head) : tiles.map((_, head) => head).filter((head) => kind(head) === scope));
  const measured = new Map(); // "scope ranking kept" -> share of words right, measured in this page
  let last = { done: 0, all: gold.length, accuracy: null };

  /* Keeps the last `many` heads of an order of removal. */
  function keep(many, by = ranking) {
    ranking = by;
    kept = many;
    const order = course.rankings[scope][ranking];
    gates.fill(1);
    order.slice(0, order.length - many).forEach((head) => (gates[head] = 0));
    translate();
  }

  function buildRankings() {
    $("scope").append(...Object.keys(course.rankings).map((name) => html("label", {},
      html("input", { type: "radio", name: "scope", value: name, checked: name === scope, onchange: () => setScope(name) }),
      html("span", {}, name === "all" ? `All ${total} heads` : `${NAMES[name]} heads`))));
    $("ranking").append(...Object.keys(course.rankings[scope]).map((name, i) => html("label", { class: `rank-${i}` },
      html("input", { type: "radio", name: "ranking", value: name, checked: name === ranking, onchange: () => keep(+$("keep").value, name) }),
      svg("svg", { viewBox: "0 0 26 8", "aria-hidden": "true" }, svg("polyline", { class: `rank-${i}`, points: "1,4 25,4" })), html("span", {}, name))));
    $("keep").addEventListener("input", () => keep(+$("keep").value));
    setScope(scope);
  }

  function setScope(name) {
    scope = name;
    const many = course.rankings[scope].random.length;
    document.querySelector(`[name=scope][value=${name}]`).checked = true;
    $("keep").max = many;
    if (sentence) keep(many);
    else $("keep").value = many;
  }

  function showCurve() {
    const heads = scoped(), on = heads.reduce((sum, head) => sum + gates[head], 0), whole = last.done === last.all;
    if (kept !== null && whole) measured.set(`${scope} ${ranking} ${kept}`, { kept, share: last.accuracy });
    $("keep").value = on;
    $("keep").setAttribute("aria-valuetext", `${on} of ${heads.length} heads stay`);
    document.querySelector(`[name=ranking][value="${ranking}"]`).checked = true;
    const by = kept === null ? (on === heads.length ? "" : ", chosen by hand") : on === heads.length ? "" : `, the first by ${ranking === "random" ? "a random order" : ranking}`;
    $("keep-text").replaceChildren(html("b", {}, `${on} of ${heads.length}`), ` ${scope === "all" ? "heads" : `${scope} heads`} stay${by}`);
    $("meter").replaceChildren(html("b", {}, last.accuracy === null ? "…" : percent(last.accuracy)), " of words right", html("span", {}, whole ? "" : ` after ${last.done} of ${last.all} sentences`));
    const past = [...measured].filter(([key]) => key.startsWith(`${scope} ${ranking} `)).map(([, point]) => point);
    $("curve").replaceChildren(curves({ lines: course.curves[scope], chosen: ranking, now: { kept: on, share: last.accuracy, whole }, measured: past, what: scope === "all" ? "heads" : `${scope} heads`, wide: Math.max(320, $("curve").clientWidth) }));
  }

  const tasks = gold.map(({ ids, right }) => ({ ids, target: [...right, config.end] }));
  const meter = createMeter({ config, tensors, tasks, model, onProgress: (found) => {
    last = found;
    if (found.done === found.all) globalThis.headtoolsLive.times.accuracy = found.accuracy;
    showCurve();
  } });

  // ---- the tour --------------------------------------------------------------------------------------------------

  const page = {
    allOn, choose, look, switchOff, kind, name: nameOf,
    press: (what) => { document.querySelector(`[name=press][value=${what}]`).checked = true; pressed = null; },
    pressHead: (head) => { tiles[head].focus(); press(head); },
    pressed: () => pressed, isOff: (head) => !gates[head], mistakes: () => mistakes,
    view: (name, query = null) => { document.querySelector(`[name=view][value=${name}]`).checked = true; view = name; picked = query; showHead(); tour?.changed(); },
    keep: (name, by, many) => { setScope(name); keep(many, by); },
    kept: () => ({ scope, kept }),
    looking: () => ({ head: shown, view, query: picked, weights: picked === null ? null : maps[shown][picked] }),
  };

  function startTour() {
    const steps = createSteps(course, page);
    let at = 0, done = false;
    const finish = () => {
      tour = null;
      $("tour").hidden = true;
      document.body.classList.remove("touring", "hide-roles");
      for (const node of document.querySelectorAll(".target")) node.classList.remove("target");
      $("start").focus();
    };
    const show = (number) => {
      const step = steps[(at = number)];
      done = false;
      tour = null; // the page is set up for the step before the step is checked
      step.begin();
      tour = { changed, looking: step.hideRoles };
      document.body.classList.toggle("hide-roles", Boolean(step.hideRoles));
      for (const node of document.querySelectorAll(".target")) node.classList.remove("target");
      $(step.target).classList.add("target");
      $("tour-count").textContent = `Step ${at + 1} of ${steps.length}`;
      $("tour-title").textContent = step.title;
      $("tour-text").textContent = step.text;
      $("tour-status").textContent = "";
      $("tour-status").className = "";
      $("tour-back").disabled = at === 0;
      $("tour-next").textContent = at === steps.length - 1 ? "Finish" : "Next";
      $("tour-dots").replaceChildren(...steps.map((_, i) => html("li", { class: i < at ? "done" : i === at ? "here" : null })));
      settle();
      const narrow = innerWidth <= 1080, first = narrow ? step.target : { heads: "text", look: "text" }[step.target] ?? step.target;
      $(first).scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
      $("tour-title").focus({ preventScroll: true });
    };
    const settle = () => {
      $("tour-next").disabled = !done;
      $("tour-show").hidden = done;
      $("tour").classList.toggle("done", done);
    };
    const changed = () => {
      if (done) return;
      const message = steps[at].check();
      if (message) {
        done = true;
        $("tour-status").className = "good";
        $("tour-status").textContent = message;
        $("tour-dots").children[at].className = "done here";
        settle();
      } else {
        const comment = steps[at].wrong?.();
        if (comment) $("tour-status").textContent = comment;
      }
    };
    $("tour-next").onclick = () => (at === steps.length - 1 ? finish() : show(at + 1));
    $("tour-back").onclick = () => show(at - 1);
    $("tour-show").onclick = () => steps[at].show();
    $("tour-end").onclick = finish;
    $("tour").hidden = false;
    document.body.classList.add("touring");
    show(0);
  }

  // ---- an address that can be shared -----------------------------------------------------------------------------

  function remember() {
    if (tour || !sentence.gold) return;
    const off = tiles.map((_, head) => head).filter((head) => !gates[head]);
    const hash = sentence.number === course.first && !off.length ? "" : `#s=${sentence.number}${off.length ? `&off=${off.join(".")}` : ""}`;
    if (hash === location.hash) return;
    try { history.replaceState(null, "", hash || location.pathname + location.search); } catch { /* not on disk, in some browsers */ }
  }

  function recall() {
    const told = new URLSearchParams(location.hash.slice(1)), number = +(told.get("s") ?? course.first);
    for (const head of (told.get("off") ?? "").split(".").filter(Boolean)) if (+head < total) gates[head] = 0;
    choose(number in gold ? number : course.first);
  }

  // ---- begin -----------------------------------------------------------------------------------------------------

  $("in-words").open = innerWidth > 1080;
  addEventListener("resize", () => showCurve());
  fillPicker();
  ownSentence();
  $("grids").replaceChildren(...nodes);
  buildRoles();
  buildRankings();
  $("all-on").addEventListener("click", allOn);
  $("toggle").addEventListener("click", () => change(() => (gates[shown] = 1 - gates[shown])));
  for (const input of document.querySelectorAll("[name=view]")) input.addEventListener("change", () => page.view(input.value, picked));
  $("start").addEventListener("click", startTour);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && tour) $("tour-end").click(); });
  recall();
  document.documentElement.classList.add("alive");
  globalThis.headtoolsLive.times.ready = performance.now();
  globalThis.headtoolsLive.times.loading = performance.now() - begun;
}
