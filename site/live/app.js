/* The page: a sentence, a gate for each head, and all that is drawn from them. */

import { $, html, percent, plural, svg } from "./dom.js";
import { tensorsOf } from "./half.js";
import { createModel, listSites, countHeads } from "./organism.js";
import { alignWords, createLexicon } from "./lexicon.js";
import { createGrids, NAMES } from "./grids.js";
import { translated, verdict } from "./words.js";
import { createBackground, createMeter, createTrial } from "./background.js";
import { createCards } from "./cards.js";
import { arcs, curves, inWords, map } from "./charts.js";
import { aboutSource, aboutWord } from "./explain.js";
import { inside } from "./inside.js";
import { createPresets } from "./presets.js";
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

  let sentence, said, maps, pairs = [], mistakes = []; // what is translated, and how
  let changes = []; // for each head, the places in the whole model's translation that change without it alone
  let shown = course.first.head, view = "arcs", picked = null, pressed = null; // the head that is open
  let scope = "encoder", ranking = "gradient", kept = null; // kept: heads that stay by the ranking, null by hand
  let tour = null;

  const aligner = course.rolesOfHeads.findIndex((names) => names.includes("next source")); // tells what a word translates
  const strongest = (row) => row.indexOf(Math.max(...row));

  // ---- choosing a sentence ---------------------------------------------------------------------------------------

  function choose(number) {
    const one = gold[number];
    sentence = { ...one, number, gold: true, told: (place) => one.needs[place].map((name, i) => [name, one.told[place][i]]) };
    $("pick").value = number;
    translate();
  }

  /* What can be told of a translation without a tree of the sentence: accents, and the topic. */
  function heard(words, at) {
    const plainly = (number) => lexicon.twin(words[number - 1] ?? ""), name = 1 + words.findIndex(lexicon.topic);
    return [["left accent", at - 1], ["right accent", at + 1]].filter(([, number]) => plainly(number)).map(([what, number]) => [what, [number]])
      .concat(name ? [["topic", [name]]] : []);
  }

  function chooseWords(words) {
    const number = gold.findIndex(({ source }) => source === words.join(" "));
    if (number >= 0) return choose(number);
    const ids = lexicon.ids(words, config.end);
    const out = model.translate(ids, whole), right = out.words.filter((id) => id !== config.end);
    const from = right.map((_, i) => (aligner < 0 ? 0 : 1 + strongest(out.maps[aligner][i]))).map((at) => (at > words.length ? undefined : at));
    sentence = { words, ids, right, from, needs: null, gold: false, number: sentence?.number ?? course.first.sentence, told: (place) => heard(words, from[place]) };
    $("pick").value = "own";
    translate();
  }

  function fillPicker() {
    const groups = new Map();
    for (const i of course.telling) {
      const { group, source } = gold[i];
      groups.set(group, [...(groups.get(group) ?? []), html("option", { value: i }, source)]);
    }
    $("pick").replaceChildren(html("option", { value: "own", hidden: true }, "Your own sentence"),
      ...[...groups].map(([name, options]) => html("optgroup", { label: name }, options)));
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
    trial.want(sentence.ids);
    remember();
    tour?.changed();
  }

  function showSource() {
    $("source").replaceChildren(...sentence.words.flatMap((word, i) => {
      const twin = lexicon.twin(word), accented = lexicon.accented(word), place = { "data-at": i + 1, "data-card": i + 1 };
      const node = twin
        ? html("button", { ...place, type: "button", class: accented ? "accented" : null, "aria-pressed": String(accented), "aria-label": `${word}, accent`,
            onclick: () => { chooseWords(sentence.words.with(i, twin)); $("source").querySelector(`[data-at="${i + 1}"]`).focus(); } }, word)
        : lexicon.topic(word) ? html("button", { ...place, type: "button", class: "name" }, word) : html("span", { "data-at": i + 1 }, word);
      return [node, " "];
    }));
  }

  function showTranslation() {
    const shownWords = translated({ said, sentence, lexicon, cards: true });
    ({ pairs, mistakes } = shownWords);
    $("words").replaceChildren(...shownWords.items);
    const off = total - gates.reduce((a, b) => a + b), reasons = new Map();
    for (const { missed } of mistakes) for (const one of missed) reasons.set(one, (reasons.get(one) ?? 0) + 1);
    $("verdict").className = `verdict ${mistakes.length ? "bad" : "good"}`;
    $("verdict").replaceChildren(html("b", {}, verdict(mistakes, sentence)), ` with ${off ? `${plural(off, "head")} off` : `all ${total} heads on`}`);
    const sorted = [...reasons].sort((a, b) => b[1] - a[1]);
    $("reading").replaceChildren(...(mistakes.length
      ? [sentence.gold ? "What is wrong: " : "What changed: ", ...sorted.flatMap(([name, n], i) => [i ? ", " : "", html("b", {}, name), ` ${n}×`]),
        sentence.gold ? ". Below a wrong word stands the grammar's." : ". Below such a word stands what the whole model writes, which need not be right."]
      : [sentence.gold ? "Equal to the grammar's translation. Above each word stands its source word, below what else it says." : "Your sentence: what the whole model writes, which need not be right. Press heads and see what changes."]));
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

  /* The heads of the encoder that attend from one source word to another and have a role which fetches the phenomenon. */
  function readers(phenomenon, query, key) {
    const fitting = (head) => course.rolesOfHeads[head].some((role) => course.readers[phenomenon].includes(role)) && strongest(maps[head][query - 1]) === key - 1;
    return tiles.flatMap((_, head) => (fitting(head) ? [`${nameOf(head)} (${percent(maps[head][query - 1][key - 1])})`] : [])).join(" and ");
  }

  const breakers = ({ right }) => changes.flatMap((places, head) => (places.includes(right) ? [nameOf(head)] : []));
  createCards({
    card: $("card"), holders: [$("source"), $("words")],
    fill: (word) => (word.closest("#source")
      ? aboutSource(+word.dataset.card, { sentence, lexicon, readers })
      : aboutWord(pairs[word.dataset.card], { sentence, said, lexicon, rules: course.phenomena, readers, breakers: breakers(pairs[word.dataset.card]) })),
  });

  // ---- heads -----------------------------------------------------------------------------------------------------

  const { nodes, tiles, draw, mark } = createGrids({
    sites, roles: rolesOf, folded: course.alike ? { cross: course.alike } : {}, name: titled, onpress: (head) => press(head),
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

  const presets = createPresets({ course, total, off(heads, number) {
    gates.fill(1);
    heads.forEach((head) => (gates[head] = 0));
    kept = null;
    $("own").hidden = true; // another sentence may come
    $("write").setAttribute("aria-expanded", "false");
    if (number === undefined) return translate();
    shown = heads[0];
    choose(number);
  } });
  const switchOff = (heads) => change(() => heads.forEach((head) => (gates[head] = 0)));
  const allOn = () => change(() => gates.fill(1));

  /* The trial of each head alone, as far as it has come. */
  function showChanges([right, ...found]) {
    changes = found.map((words) => alignWords(words, right, lexicon).flatMap(({ said: i, right: j }) => (i >= 0 && j >= 0 && words[i] === right[j] ? [] : [j])));
    mark(changes.map((places) => places.length));
    showAlone();
    const many = changes.filter((places) => places.length).length;
    $("changing").textContent = found.length < total ? `Trying each head alone: ${found.length} of ${total} …`
      : `${many || "None"} of ${total} heads ${many === 1 ? "changes" : "change"} this sentence${many ? "; red: how many of its words" : ""}.`;
  }

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

  function showAlone() {
    const n = changes[shown]?.length;
    $("look-alone").textContent = n ? `Switched off alone, it changes ${plural(n, "word")} of this sentence.` : "";
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
    const role = texts.length ? `${texts.slice(0, 2).join(". ")}.` : "No role of its own is known.";
    const others = more > 0 && html("details", {}, html("summary", {}, `${plural(more, "more role")}`), `${texts.slice(2).join(". ")}.`);
    $("look-role").replaceChildren(role, ...(others ? [others] : []));
    showAlone();
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
    $("view-key").textContent = view === "inside" ? "" : view === "map" ? "A row for each word that looks, a column for each word looked at." : one === "cross"
      ? "From each word of the translation, left, to the source words that it looks at." : "An arc ends in a dot at the word looked at: left, an earlier one; right, a later one. A ring: the word itself.";
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
  const background = createBackground({ config, tensors, model });
  const trial = createTrial(background, { total, onProgress: (found) => {
    showChanges(found);
    if (found.length === total + 1) {
      globalThis.headtoolsLive.times.trial = performance.now() - begun;
      showHead();
    }
  } });
  const meter = createMeter(background, { tasks, onProgress: (found) => {
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
    const steps = createSteps(course, page), pressingBefore = pressing();
    let at = 0, done = false;
    $("role").value = ""; // heads of a role would stay marked, and the choice is hidden
    $("role").dispatchEvent(new Event("change"));
    const finish = () => {
      document.querySelector(`[name=press][value=${pressingBefore}]`).checked = true;
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
      document.documentElement.style.setProperty("--tour", `${$("tour").offsetHeight}px`); // now: what follows scrolls by it
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

  const letters = (head) => `${kind(head)[0]}${siteOf(head).layer}.${head - siteOf(head).first}`; // e5.1

  function address() {
    const off = tiles.flatMap((_, head) => (gates[head] ? [] : [letters(head)]));
    const what = sentence.gold ? sentence.number : encodeURIComponent(sentence.words.join(" "));
    return `#s=${what}${off.length ? `&off=${off}` : ""}`;
  }

  function remember() {
    const short = address() === `#s=${course.first.sentence}` ? location.pathname + location.search : address();
    if (!tour) try { history.replaceState(null, "", short); } catch { /* not on disk, in some browsers */ }
  }

  function recall() {
    const told = new URLSearchParams(location.hash.slice(1)), off = (told.get("off") ?? "").split(","), what = told.get("s") ?? "";
    tiles.forEach((_, head) => (gates[head] = off.includes(letters(head)) ? 0 : 1));
    kept = null;
    const words = lexicon.split(what);
    if (words.length && words.length <= LONGEST && !lexicon.unknown(words).length) chooseWords(words);
    else choose(what in gold ? +what : course.first.sentence);
  }

  async function copyLink() {
    try {
      await navigator.clipboard.writeText(location.href.split("#")[0] + address());
      $("copied").textContent = "Copied.";
    } catch {
      $("copied").textContent = "It stands in the address bar.";
    }
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
  for (const button of document.querySelectorAll("[data-do]")) button.addEventListener("click", () => presets[button.dataset.do](button.dataset));
  $("copy").addEventListener("click", copyLink);
  for (const input of document.querySelectorAll("[name=view]")) input.addEventListener("change", () => page.view(input.value, picked));
  $("start").addEventListener("click", startTour);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && tour) $("tour-end").click(); });
  addEventListener("hashchange", recall);
  for (const id of ["result", "tour"]) // what sticks to the top: other things keep clear of it
    new ResizeObserver(() => document.documentElement.style.setProperty(`--${id}`, `${$(id).offsetHeight}px`)).observe($(id));
  $("words").removeAttribute("tabindex"); // its words are buttons now
  recall();
  if (sentence.number === course.first.sentence && gates.every(Boolean)) {
    tiles[course.first.head].classList.add("begin");
    $("begin").hidden = false;
    for (const id of ["heads", "start"]) $(id).addEventListener("click", () => {
      tiles[course.first.head].classList.remove("begin");
      $("begin").hidden = true;
    }, { once: true });
  }
  document.documentElement.classList.add("alive");
  globalThis.headtoolsLive.times.ready = performance.now();
  globalThis.headtoolsLive.times.loading = performance.now() - begun;
}
