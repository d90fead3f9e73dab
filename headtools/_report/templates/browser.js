// The heads of a report: a plot with free axes, a table that sorts, and a page for each head. Text from data only ever
// becomes a text node, and nothing is loaded: another report is read from a file that the reader chooses.
"use strict";
(() => {
  const FORMAT = "headtools heads, version 1";
  const $ = (id) => document.getElementById(id);
  const reports = [JSON.parse($("data").textContent)];
  const state = { report: 0, head: null, up: "", across: "layer", colour: "function", sort: "", down: true };
  const data = () => reports[state.report];
  const other = () => reports[1 - state.report];

  // ---- elements, numbers, names ------------------------------------------------------------------------------------

  const IN_SVG = new Set(["svg", "g", "circle", "rect", "path", "line", "text", "title"]);
  function make(name, attributes = {}, ...children) {
    const node = IN_SVG.has(name)
      ? document.createElementNS("http://www.w3.org/2000/svg", name)
      : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  }
  const write = (text, x, y, attributes = {}) => make("text", { x, y, ...attributes }, String(text));
  const upwards = (text, x, y, attributes = {}) =>
    make("text", { transform: `translate(${x} ${y}) rotate(-90)`, ...attributes }, text);
  const line = (x1, y1, x2, y2, kind) => make("line", { x1, y1, x2, y2, class: kind });
  function mark(kind, x, y, size, attributes) {
    if (kind === "decoder")
      return make("rect", { x: x - size, y: y - size, width: 2 * size, height: 2 * size, ...attributes });
    if (kind === "cross") {
      const triangle = `M${x} ${y - size * 1.3}l${size * 1.25} ${size * 2.2}h${-size * 2.5}z`;
      return make("path", { d: triangle, ...attributes });
    }
    return make("circle", { cx: x, cy: y, r: size, ...attributes });
  }
  function say(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size >= 100) return value.toFixed(0);
    return size && size < 0.001 ? value.toPrecision(2) : String(Number(value.toPrecision(3)));
  }
  const range = (low, high) => (low === null ? "" : `${say(low)} to ${say(high)}`);
  const ordinal = (n) =>
    n + ([11, 12, 13].includes(n % 100) ? "th" : ({ 1: "st", 2: "nd", 3: "rd" }[n % 10] ?? "th"));
  const address = (name) => "#" + name.replaceAll(" ", "-");
  const named = () => data().heads.find((head) => address(head.name) === decodeURIComponent(location.hash));
  const link = (name) => make("a", { href: address(name) }, name);

  const isMeasure = (name) => name in data().measures;
  const score = (head, name) => (head.scores[name] ? head.scores[name][0] : null);
  const ofMeasure = (name) => data().heads.map((head) => score(head, name)).filter((value) => value !== null);
  function median(values) {
    const sorted = [...values].sort((a, b) => a - b);
    return (sorted[Math.floor((sorted.length - 1) / 2)] + sorted[Math.ceil((sorted.length - 1) / 2)]) / 2;
  }

  // ---- scales --------------------------------------------------------------------------------------------------------

  // On a phone the drawing is as wide as the screen, so that its letters keep their size.
  const [W, H] = innerWidth < 600 ? [Math.max(320, innerWidth - 30), 400] : [640, 420];
  const [LEFT, RIGHT, TOP, BOTTOM] = [62, 14, 14, 44];
  let spread = 0; // how much of a layer's place its heads share, side by side
  const root = (value) => ($("root").checked ? Math.sign(value) * Math.sqrt(Math.abs(value)) : value);

  // Where a head stands on an axis; end 1 and 2 are those of its interval.
  function place(head, axis, end = 0) {
    const width = Math.max(...data().heads.map((one) => one.head)) + 1;
    const groups = [...new Set(data().heads.map((one) => one.group))]; // side by side where both axes are numbers
    if (axis === "head") return head.head + (state.up === "layer" ? 0.26 * groups.indexOf(head.group) : 0);
    if (axis === "layer") return head.layer + (head.head / width - 0.5) * spread;
    const value = head.scores[axis]?.[end] ?? null;
    return value === null ? null : root(value);
  }
  function ends(axis) {
    const values = reports
      .flatMap((report) => report.heads)
      .flatMap((head) => [0, 1, 2].map((end) => place(head, axis, end)))
      .filter((value) => value !== null);
    const low = Math.min(...values, ...(isMeasure(axis) ? [0] : []));
    const margin = (Math.max(...values) - low || 1) * 0.06;
    return [low - margin, Math.max(...values) + margin];
  }
  // Numbers that begin with 1, 2 or 5, as many as there is room for, from the largest down, and 0: [place, label].
  function round(low, high, at) {
    const kept = [0];
    const sizes = Array.from({ length: 16 }, (_, i) => 10 ** (5 - i)).flatMap((ten) => [5 * ten, 2 * ten, ten]);
    const fits = (value) => at(value) >= low && at(value) <= high;
    const apart = (one, two) => Math.abs(at(one) - at(two)) > (high - low) / 9;
    for (const value of sizes.flatMap((size) => [size, -size]))
      if (fits(value) && kept.every((old) => apart(old, value))) kept.push(value);
    return kept.filter(fits).map((value) => [at(value), say(value)]);
  }
  function ticks(axis, [low, high]) {
    if (isMeasure(axis)) return round(low, high, root);
    const step = Math.ceil((high - low) / 16);
    const all = Array.from({ length: Math.floor(high) + 1 }, (_, i) => i);
    return all.filter((i) => i >= low && i % step === 0).map((i) => [i, i]);
  }
  function axes(across, up, x, y, right, below, beside) {
    return [
      ...across.map(([at, label]) => write(label, x(at), H - BOTTOM + 16, { "text-anchor": "middle" })),
      ...up.map(([at]) => line(LEFT, y(at), right, y(at), "rule")),
      ...up.map(([at, label]) => write(label, LEFT - 6, y(at) + 4, { "text-anchor": "end" })),
      write(below, (LEFT + right) / 2, H - 6, { "text-anchor": "middle", class: "axis" }),
      upwards(beside, 14, (TOP + H - BOTTOM) / 2, { "text-anchor": "middle", class: "axis" }),
    ];
  }
  function shade(head) {
    if (state.colour === "function") return data().functions[head.function].colour;
    if (state.colour === "kind") return { encoder: "#56B4E9", decoder: "#009E73", cross: "#E69F00" }[head.kind];
    const value = place(head, state.colour);
    if (value === null) return "none";
    const values = ofMeasure(state.colour).map(root);
    const part = (value - Math.min(...values)) / (Math.max(...values) - Math.min(...values) || 1);
    const mix = (light, dark) => Math.round(light + (dark - light) * part);
    return `rgb(${mix(255, 0)},${mix(238, 44)},${mix(153, 110)})`; // from light yellow to dark blue
  }

  // ---- the plot ------------------------------------------------------------------------------------------------------

  function drawPlot() {
    $("plot").setAttribute("viewBox", `0 0 ${W} ${H}`);
    spread = [state.across, state.up].includes("head") ? 0 : 0.7;
    const [xs, ys] = [ends(state.across), ends(state.up)];
    const x = (value) => LEFT + ((value - xs[0]) / (xs[1] - xs[0])) * (W - LEFT - RIGHT);
    const height = (value) => ((value - ys[0]) / (ys[1] - ys[0])) * (H - TOP - BOTTOM);
    const y = (value) => (state.up === "layer" ? TOP + height(value) : H - BOTTOM - height(value)); // layer 0 on top
    const shown = data().heads.filter((head) => ["all", head.group].includes($("kind").value));
    const placed = shown
      .map((head) => [head, place(head, state.across), place(head, state.up)])
      .filter(([, across, up]) => across !== null && up !== null);
    const twins = new Map(reports.length > 1 ? other().heads.map((head) => [head.was, head]) : []);
    const parts = axes(ticks(state.across, xs), ticks(state.up, ys), x, y, W - RIGHT, state.across, state.up);
    for (const [head, across, up] of placed) {
      const here = head === state.head;
      const group = make("g", { class: "point", "data-head": head.name });
      const [left, right] = [1, 2].map((end) => (isMeasure(state.across) ? place(head, state.across, end) : null));
      const [low, high] = [1, 2].map((end) => (isMeasure(state.up) ? place(head, state.up, end) : null));
      if (left !== null) group.append(line(x(left), y(up), x(right), y(up), "interval"));
      if (low !== null) group.append(line(x(across), y(low), x(across), y(high), "interval"));
      const twin = twins.get(head.was);
      const [twinAcross, twinUp] = twin ? [place(twin, state.across), place(twin, state.up)] : [null, null];
      if (twinAcross !== null && twinUp !== null) {
        group.append(line(x(across), y(up), x(twinAcross), y(twinUp), "moved"));
        group.append(mark("encoder", x(twinAcross), y(twinUp), 4, { class: "other" }));
      }
      group.append(mark(head.kind, x(across), y(up), here ? 8 : 5.5, { fill: shade(head), class: here ? "here" : "" }));
      const does = head.function === "none" ? "no function" : head.function;
      const much = isMeasure(state.up) ? `; ${state.up} ${say(score(head, state.up))}` : "";
      group.append(make("title", {}, `${head.name}: ${does}${much}`));
      parts.push(group);
    }
    // The head that is open has its name written, and up to six of the highest, where there is room.
    const highest = [...placed].sort((a, b) => Math.abs(b[2]) - Math.abs(a[2])).slice(0, isMeasure(state.up) ? 6 : 0);
    const names = [];
    for (const [head, across, up] of [...placed.filter(([head]) => head === state.head), ...highest]) {
      const end = x(across) > W - 110;
      const [left, base] = [x(across) + (end ? -90 : 10), y(up) - 6];
      if (names.some(([otherLeft, otherBase]) => Math.abs(left - otherLeft) < 84 && Math.abs(base - otherBase) < 12)) continue;
      names.push([left, base]);
      const where = { "text-anchor": end ? "end" : "start", class: "name" };
      parts.push(write(head.name, end ? left + 80 : left, base, where));
    }
    $("plot").replaceChildren(...parts);
    const about = (axis) => data().measures[axis] ?? axis;
    $("plot-says").textContent = [
      `Each mark is a head. Up: ${about(state.up)}. Across: ${about(state.across)}.`,
      isMeasure(state.up) || isMeasure(state.across) ? " Lines are 95 % intervals." : "",
      shown.length > placed.length ? ` Not shown: ${shown.length - placed.length} heads without these numbers.` : "",
      reports.length > 1 ? ` Rings: the same heads in “${other().title}”.` : "",
    ].join("");
    drawLegend(shown);
  }
  function drawLegend(shown) {
    const sample = (kind, fill) =>
      make("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" }, mark(kind, 7, 7, 5, { fill }));
    const kinds = [...new Set(data().heads.map((head) => head.kind))];
    const items = kinds.length > 1 ? kinds.map((kind) => [sample(kind, "none"), kind]) : [];
    for (const [name, { colour }] of Object.entries(state.colour === "function" ? data().functions : {})) {
      const n = shown.filter((head) => head.function === name).length;
      if (n) items.push([sample("decoder", colour), `${name === "none" ? "no function" : name} (${n})`]);
    }
    $("legend").replaceChildren(...items.map((item) => make("li", {}, ...item)));
  }

  // ---- the table -----------------------------------------------------------------------------------------------------

  function drawTable() {
    const measures = Object.keys(data().measures);
    const value = (head, name) => {
      if (name === "head") return data().heads.indexOf(head);
      return name === "function" ? head.function : score(head, name);
    };
    const rows = [...data().heads].sort((a, b) => {
      const [one, two] = [value(a, state.sort), value(b, state.sort)];
      if (one === null || two === null) return (one === null) - (two === null); // heads without a number come last
      return (one < two ? -1 : one > two ? 1 : 0) * (state.down ? -1 : 1);
    });
    const header = ["head", "function", ...measures].map((name) => {
      const sorted = state.sort === name ? { "aria-sort": state.down ? "descending" : "ascending" } : {};
      return make("th", { scope: "col", ...sorted }, make("button", { type: "button", "data-sort": name }, name));
    });
    const largest = new Map(measures.map((name) => [name, Math.max(...ofMeasure(name).map(Math.abs), 0) || 1]));
    const cell = (head, name) => {
      const made = make("td", {}, say(score(head, name)));
      made.style.setProperty("--part", Math.abs(score(head, name) ?? 0) / largest.get(name));
      return made;
    };
    const body = rows.map((head) =>
      make(
        "tr",
        head === state.head ? { class: "here" } : {},
        make("th", { scope: "row" }, link(head.name)),
        make("td", {}, head.function === "none" ? "–" : head.function),
        ...measures.map((name) => cell(head, name)),
      ),
    );
    const caption = `All ${rows.length} heads, on ${data()["measured on"]}. A bar is the share of the largest in its column.`;
    const parts = [make("thead", {}, make("tr", {}, ...header)), make("tbody", {}, ...body)];
    $("table").replaceChildren(make("caption", {}, caption), ...parts);
  }

  // ---- the page of a head --------------------------------------------------------------------------------------------

  function table(caption, header, rows) {
    const first = (cell) => make("th", { scope: "row" }, cell);
    const others = (cell) => make("td", cell.length > 24 ? { class: "words" } : {}, cell);
    const body = rows.map(([name, ...cells]) => make("tr", {}, first(name), ...cells.map(others)));
    const made = make(
      "table",
      {},
      make("caption", {}, caption),
      make("thead", {}, make("tr", {}, ...header.map((name) => make("th", { scope: "col" }, name)))),
      make("tbody", {}, ...body),
    );
    return make("div", { class: "wide", tabindex: 0, role: "region", "aria-label": caption }, made);
  }
  function numbersOf(head) {
    const twin = reports.length > 1 ? other().heads.find((one) => one.was === head.was) : null;
    const rows = Object.entries(head.scores).map(([name, [value, low, high]]) => {
      const values = ofMeasure(name);
      const rank = `${values.filter((one) => one > value).length + 1} of ${values.length}`;
      const [there, from, to] = twin?.scores[name] ?? [null, null, null];
      const elsewhere = reports.length > 1 ? [say(there), range(from, to)] : [];
      return [name, say(value), range(low, high), ...elsewhere, say(median(values)), rank];
    });
    const elsewhere = reports.length > 1 ? ["other report", "95 % interval"] : [];
    return table("Its numbers", ["measure", "value", "95 % interval", ...elsewhere, "median head", "rank"], rows);
  }
  function rolesOf(head) {
    const rows = head.roles.slice(0, 6).map((role) => [
      `${role.passes ? "✓ " : ""}${role.role}`,
      ...[say(role.score), range(role.low, role.high), say(role.baseline), say(role.chance), String(role.n)],
    ]);
    const header = ["role", "score", "95 % interval", "baseline", "chance", "queries"];
    const caption =
      "What it attends to, beside the best fixed offset and chance. “det up”: from a determiner to its noun, up in the " +
      "tree; ✓: the role holds, on 50 queries or more.";
    return table(caption, header, rows);
  }
  function replacementsOf(head) {
    const all = { zero: head.scores.cost, ...head.replaced };
    const rows = Object.entries(all).map(([name, [value, low, high]]) => [name, say(value), range(low, high)]);
    const caption = "What it costs when something else takes the place of its output";
    return table(caption, ["replaced by", "cost", "95 % interval"], rows);
  }
  function wordsOf(head) {
    const rows = ["reads +", "writes +", "reads -", "writes -"].map((name) => {
      const [words, cosine] = head.words[name];
      return [name.replace("-", "−"), words.join(", "), say(cosine)];
    });
    const share = Math.round(100 * head.words.share);
    const caption =
      `Words nearest to its first direction, which holds ${share} % of what W_OV moves. ` +
      `The nearest to a random direction has cosine ${say(data()["chance of words"])}.`;
    return table(caption, ["direction", "words", "cosine"], rows);
  }
  function nearestTo(head) {
    const names = head.near.flatMap(([name, by], i) => [i ? ", " : "", link(name), ` (${say(by)})`]);
    return make("p", {}, "Most similar maps: ", ...names, "; 1 would be equal.");
  }
  function drawHead() {
    const head = state.head;
    const site = [...head.group.split(" ").map((name) => `"${name}"`), head.layer].join(", ");
    const held = head.roles.filter((role) => role.passes).map((role) => role.role);
    const before = head.was === head.name ? "" : ` Before pruning it was ${head.was}.`;
    $("head").replaceChildren(
      make("h3", { id: "head-title" }, head.name),
      make("p", {}, (held.length ? `Roles that hold: ${held.join(", ")}.` : "No role holds.") + before),
      make("p", { class: "note" }, "Off: ", make("code", {}, `ht.ablate(model, {(${site}): [${head.head}]})`)),
      numbersOf(head),
      ...(head.roles.length ? [rolesOf(head)] : []),
      ...(Object.keys(head.replaced).length ? [replacementsOf(head)] : []),
      ...(head.words ? [wordsOf(head)] : []),
      ...(head.near.length ? [nearestTo(head)] : []),
    );
    const maps = head.examples.filter((example) => example.map);
    const which = maps.some((example) => example.worth !== null)
      ? `from the ${data().unit} in which it is most important to that in which it is least`
      : `on some ${data().unit}s`;
    $("maps-title").textContent = maps.length ? `Where ${head.name} looks, ${which}` : "";
    $("maps").replaceChildren(...maps.map((example) => drawMap(head, example)));
  }
  function drawMap(head, example) {
    const weights = Uint8Array.from(atob(example.map), (letter) => letter.charCodeAt(0));
    const text = data().texts[example.example] ?? {};
    const own = head.kind === "encoder" ? text.input_ids : (text.decoder_input_ids ?? text.input_ids);
    const labels = (tokens, n) => (tokens?.length === n ? tokens : Array.from({ length: n }, (_, i) => String(i)));
    const queries = labels(own, example.queries);
    const keys = labels(head.kind === "cross" ? text.input_ids : own, example.keys);
    const short = (token) => (token.length > 14 ? token.slice(0, 13) + "…" : token);
    const room = (tokens) => 8 + 6.8 * Math.max(...tokens.map((token) => short(token).length));
    const [left, top, cell] = [room(queries), room(keys), 12];
    const [width, height] = [keys.length * cell, queries.length * cell];
    const pair = (at) => [Math.floor(at / keys.length), at % keys.length];
    const from = (at) => pair(at).map((i, side) => [queries, keys][side][i]).join(" → ");
    const cells = [...weights].flatMap((level, at) => {
      if (level < 3) return [];
      const [query, key] = pair(at);
      const where = { x: left + key * cell, y: top + query * cell, width: cell - 1, height: cell - 1 };
      const title = make("title", {}, `${from(at)}: ${say((level / 255) * example.top)}`);
      return [make("rect", { ...where, class: "weight", "fill-opacity": (level / 255).toFixed(3) }, title)];
    });
    const words = [
      ...queries.map((token, i) => write(short(token), left - 4, top + i * cell + 9.5, { "text-anchor": "end" })),
      ...keys.map((token, i) => upwards(short(token), left + i * cell + 9.5, top - 4)),
    ];
    const strongest = `strongest: ${from(weights.indexOf(Math.max(...weights)))} (${say(example.top)})`;
    const worth = example.worth === null ? "" : `${ordinal(example.rank)}; importance ${say(example.worth)}; `;
    const alt = `Map of ${head.name}, ${queries.length} queries by ${keys.length} keys; ${strongest}`;
    const size = { viewBox: `0 0 ${left + width} ${top + height}`, width: left + width };
    const frame = make("rect", { x: left, y: top, width, height, class: "frame" });
    const drawing = make("svg", { ...size, role: "img", "aria-label": alt }, frame, ...cells, ...words);
    return make("figure", {}, drawing, make("figcaption", {}, worth + strongest));
  }

  // ---- the pruning curve ---------------------------------------------------------------------------------------------

  function drawCurve() {
    const rows = reports[0].curve;
    if (!$("curve") || !rows.length) return;
    const ranked = rows.filter((row) => row.order !== "random").sort((a, b) => a.kept - b.kept);
    const most = ranked.at(-1).kept;
    const top = Math.max(...rows.map((row) => row.high ?? row.metric)) * 1.05 || 1;
    const right = W - RIGHT - 130;
    const x = (kept) => LEFT + (kept / most) * (right - LEFT);
    const y = (value) => H - BOTTOM - (value / top) * (H - TOP - BOTTOM);
    const across = [0, 1, 2, 3, 4].map((i) => Math.round((most * i) / 4)).map((kept) => [kept, kept]);
    const up = round(0, top, (value) => value);
    const path = "M" + ranked.map((row) => `${x(row.kept)} ${y(row.metric)}`).join("L");
    const intervals = ranked.filter((row) => row.low !== null);
    const random = rows.filter((row) => row.order === "random");
    const alt =
      `${reports[0].loss} against heads kept, from ${say(ranked.at(-1).metric)} with all ${most} heads to ` +
      `${say(ranked[0].metric)} with none; the numbers are in the table below`;
    const parts = [
      ...axes(across, up, x, y, right, "heads kept", reports[0].loss),
      ...random.map((row) => mark("decoder", x(row.kept), y(row.metric), 3, { class: "random" })),
      ...intervals.map((row) => line(x(row.kept), y(row.low), x(row.kept), y(row.high), "interval strong")),
      make("path", { d: path, class: "ranked" }),
      ...ranked.map((row) => mark("encoder", x(row.kept), y(row.metric), 4, { class: "ranked-point" })),
      mark("encoder", right + 14, TOP + 12, 4, { class: "ranked-point" }),
      write("least important first", right + 24, TOP + 16),
      mark("decoder", right + 14, TOP + 32, 4, { class: "random" }),
      write("random orders", right + 24, TOP + 36),
    ];
    $("curve").append(make("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": alt }, ...parts));
  }

  // ---- choices -------------------------------------------------------------------------------------------------------

  function fill(select, names, value) {
    select.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
    select.value = value;
  }
  function open(head) {
    state.head = head;
    drawPlot();
    drawTable();
    drawHead();
  }
  function choose(report) {
    state.report = report;
    const measures = Object.keys(data().measures);
    const ofAll = measures.filter((name) => ofMeasure(name).length === data().heads.length);
    const first = ofAll.includes("cost") ? "cost" : (ofAll[0] ?? "head");
    const choices = {
      up: [...measures, "layer", "head"],
      across: ["layer", "head", ...measures],
      colour: ["function", "kind", ...measures],
    };
    for (const [name, known] of Object.entries(choices)) {
      if (!known.includes(state[name])) state[name] = name === "up" ? first : known[0];
      fill($(name), known, state[name]);
    }
    if (!["head", "function", ...measures].includes(state.sort)) state.sort = first;
    fill($("kind"), ["all", ...new Set(data().heads.map((head) => head.group))], "all");
    const same = data().heads.find((head) => head.was === state.head?.was);
    const most = (head) => score(head, state.up) ?? -Infinity;
    open(same ?? named() ?? data().heads.reduce((best, head) => (most(head) > most(best) ? head : best)));
  }
  async function compare(file) {
    const text = await file.text();
    let found = null;
    try {
      const page = new DOMParser().parseFromString(text, "text/html");
      found = JSON.parse(page.getElementById("data")?.textContent ?? text);
    } catch {} // no JSON: refused below
    if (found?.format !== FORMAT || !found.heads?.length) {
      $("other-says").textContent = `${file.name} is not a headtools report: choose a page that report(…, path=…) wrote.`;
      return;
    }
    reports[1] = found;
    const shared = found.heads.filter((head) => reports[0].heads.some((one) => one.was === head.was)).length;
    const sizes = reports.map((report) => report["measured on"]).join(" and ");
    $("other-says").textContent = `${shared} heads are in both reports. They were measured on ${sizes}.`;
    $("which").hidden = false;
    for (const i of [0, 1]) $(`which-${i}`).textContent = reports[i].title;
    choose(state.report);
  }

  for (const name of ["up", "across", "colour"])
    $(name).addEventListener("change", () => {
      state[name] = $(name).value;
      drawPlot();
    });
  for (const name of ["kind", "root"]) $(name).addEventListener("change", drawPlot);
  $("other").addEventListener("change", () => $("other").files[0] && compare($("other").files[0]));
  $("which").addEventListener("change", (event) => {
    choose(Number(event.target.value));
    history.replaceState(null, "", address(state.head.name)); // a head's number may be another there
  });
  $("table").addEventListener("click", (event) => {
    const name = event.target.dataset.sort;
    if (!name) return;
    state.down = state.sort === name ? !state.down : isMeasure(name);
    state.sort = name;
    drawTable();
    $("table").querySelector(`[data-sort="${CSS.escape(name)}"]`).focus();
  });
  $("plot").addEventListener("click", (event) => {
    const point = event.target.closest("[data-head]");
    if (point) location.hash = address(point.dataset.head);
  });
  $("plot").addEventListener("keydown", (event) => {
    // Layers are passed in the direction in which they are drawn.
    const along = { ArrowRight: 1, ArrowLeft: -1 }[event.key], down = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const step = !along && !down ? null : (along !== undefined) === (state.across === "layer") ? [along ?? down, 0] : [0, along ?? down];
    if (!step) return;
    const { group, layer, head } = state.head;
    const at = (one) => one.group === group && one.layer === layer + step[0] && one.head === head;
    const next = step[0] ? data().heads.find(at) : data().heads[data().heads.indexOf(state.head) + step[1]];
    if (!next) return; // the page may scroll
    event.preventDefault();
    location.replace(address(next.name)); // a step back leaves the plot, not one head
  });
  document.addEventListener("click", (event) => {
    const name = event.target.dataset?.show; // a link of a section: “Every head in the plot”
    if (name === undefined || !isMeasure(name)) return;
    state.up = state.sort = name;
    choose(state.report);
  });
  window.addEventListener("hashchange", () => named() && open(named()));
  $("browser").hidden = false;
  choose(0);
  drawCurve();
})();
