/* Drawings: arcs and maps of a head, and the pruning curves. */

import { html, percent, svg } from "./dom.js";

const VISIBLE = 0.05; // weaker weights are not drawn as arcs

/* What a head does, in words: the strongest key of each query. */
export function inWords(rows, queries, keys) {
  return rows.map((row, i) => {
    const best = row.indexOf(Math.max(...row));
    return { query: queries[i], key: keys[best], weight: row[best] };
  });
}

function label(rows, queries, keys) {
  return inWords(rows, queries, keys).map(({ query, key, weight }) => `${query} to ${key} ${percent(weight)}`).join(", ");
}

/* Self-attention: the words once, from top to bottom. Arcs to earlier words run on the left, to later ones on the
   right; they end in a dot at the word attended to. Cross-attention: two columns. `onpick(row)` picks a query. */
export function arcs({ rows, queries, keys, own, picked, onpick }) {
  const many = Math.max(queries.length, keys.length), step = many > 18 ? 21 : 25, wide = 400, top = own ? 14 : 34;
  const middle = wide / 2, gap = 62, y = (i) => top + step * (i + 0.5);
  const drawing = svg("svg", { viewBox: `0 0 ${wide} ${top + step * many + 14}`, class: "arcs", role: "img", "aria-label": `Attention: ${label(rows, queries, keys)}` });
  const longest = (list) => Math.max(...list.map((word) => word.length));
  const columns = own ? null : { left: 150, right: 250 };
  const half = own ? Math.max(34, longest(queries) * 4.6 + 8) : 0;
  const lines = svg("g", { class: picked === null ? "lines" : "lines some" });
  rows.forEach((row, i) => {
    const group = svg("g", { class: i === picked ? "of picked" : "of" });
    row.forEach((weight, j) => {
      if (weight < VISIBLE) return;
      const style = `stroke-width:${(0.5 + 3.2 * weight).toFixed(2)};opacity:${(0.15 + 0.85 * weight).toFixed(2)}`;
      if (!own) {
        const { left, right } = columns;
        group.append(svg("path", { d: `M${left + 6} ${y(i)}C${left + 50} ${y(i)} ${right - 50} ${y(j)} ${right - 6} ${y(j)}`, style }));
        return;
      }
      if (i === j) {
        group.append(svg("circle", { class: "ring", cx: middle + half + 9, cy: y(i), r: 4, style }));
        return;
      }
      const side = j < i ? -1 : 1, edge = middle + side * half, reach = side * Math.min(middle - half - 6, 16 + 15 * Math.sqrt(Math.abs(i - j)) * 1.25);
      group.append(
        svg("path", { d: `M${edge} ${y(i)}C${edge + reach * 1.3} ${y(i)} ${edge + reach * 1.3} ${y(j)} ${edge} ${y(j)}`, style }),
        svg("circle", { cx: edge, cy: y(j), r: 1.2 + 2.4 * weight, style: `opacity:${(0.3 + 0.7 * weight).toFixed(2)}` }),
      );
    });
    lines.append(group);
  });
  drawing.append(lines);
  const word = (text, x, i, anchor, query) => {
    const node = svg("text", { x, y: y(i) + 4.5, "text-anchor": anchor, class: query ? (i === picked ? "query picked" : "query") : "key" }, text);
    if (query) {
      const area = svg("rect", { x: anchor === "end" ? 0 : x - half, y: y(i) - step / 2, width: anchor === "end" ? x : 2 * half, height: step, class: "area" });
      area.addEventListener("pointerenter", () => (lines.classList.add("some"), lines.children[i]?.classList.add("lit")));
      area.addEventListener("pointerleave", () => (lines.classList.toggle("some", picked !== null), lines.children[i]?.classList.remove("lit")));
      area.addEventListener("click", () => onpick(i));
      return [node, area];
    }
    return [node];
  };
  if (own) queries.forEach((text, i) => drawing.append(...word(text, middle, i, "middle", true)));
  else {
    drawing.append(svg("text", { x: columns.left, y: 16, "text-anchor": "end", class: "head" }, "attends"), svg("text", { x: columns.right, y: 16, class: "head" }, "to"));
    queries.forEach((text, i) => drawing.append(...word(text, columns.left, i, "end", true)));
    keys.forEach((text, j) => drawing.append(...word(text, columns.right, j, "start", false)));
  }
  return drawing;
}

/* A square for each pair of words: a row for each query, a column for each key. */
export function map({ rows, queries, keys }) {
  const wide = 400, longest = (words) => Math.max(...words.map((word) => word.length)) * 9.4; // of letters in the widest of fonts
  const left = Math.max(60, 14 + longest(queries)), top = Math.max(50, 16 + 0.85 * longest(keys));
  const step = Math.min(26, (wide - left - 4) / Math.max(keys.length, 6)), size = Math.min(14, step * 0.78);
  const drawing = svg("svg", { viewBox: `0 0 ${wide} ${top + step * rows.length + 6}`, class: "map", role: "img", "aria-label": `Attention: ${label(rows, queries, keys)}` });
  keys.forEach((word, j) => drawing.append(svg("text", { transform: `translate(${left + step * (j + 0.62)} ${top - 6}) rotate(-58)`, style: `font-size:${size}px` }, word)));
  rows.forEach((row, i) => {
    drawing.append(svg("text", { x: left - 7, y: top + step * (i + 0.5) + size / 3, "text-anchor": "end", style: `font-size:${size}px` }, queries[i]));
    for (let j = 0; j < keys.length; j++) {
      const weight = row[j] ?? 0, place = { x: left + step * j + 0.75, y: top + step * i + 0.75, width: step - 1.5, height: step - 1.5, rx: 2.5 };
      const cell = svg("rect", { ...place, style: `opacity:${(0.06 + 0.94 * weight).toFixed(3)}` });
      if (weight > 0.005) cell.append(svg("title", {}, `${queries[i]} → ${keys[j]}: ${percent(weight)}`));
      drawing.append(cell);
    }
  });
  return drawing;
}

/* Curves of all rankings, and the dot: { curves: { name: [[kept, share]] }, chosen, now: { kept, share }, measured }. */
export function curves({ lines, chosen, now, measured, what, wide }) {
  const high = 250, left = 46, right = 14, top = 12, bottom = 30; // as in tools/live_stills.py
  const most = Math.max(...Object.values(lines).flat().map(([kept]) => kept));
  const x = (kept) => left + ((wide - left - right) * kept) / most, y = (share) => top + (high - top - bottom) * (1 - share);
  const told = Object.entries(lines).map(([name, points]) => `${name}: ${points.filter((_, i) => i % 4 === 0).map(([kept, share]) => `${kept} heads ${percent(share)}`).join(", ")}`);
  const drawing = svg("svg", { viewBox: `0 0 ${wide} ${high}`, class: "curves", role: "img", "aria-label": `Share of words right by number of ${what} kept. ${told.join(". ")}.` });
  for (const share of [0, 0.25, 0.5, 0.75, 1])
    drawing.append(svg("line", { class: "rule", x1: left, x2: wide - right, y1: y(share), y2: y(share) }), svg("text", { x: left - 8, y: y(share) + 4, "text-anchor": "end" }, `${100 * share} %`));
  for (const part of [0, 0.25, 0.5, 0.75, 1]) drawing.append(svg("text", { x: x(part * most), y: high - 9, "text-anchor": part === 1 ? "end" : "middle" }, Math.round(part * most)));
  Object.entries(lines).forEach(([name, points], i) => {
    const line = svg("polyline", { class: `rank-${i}${name === chosen ? " chosen" : ""}`, points: points.map(([kept, share]) => `${x(kept).toFixed(1)},${y(share).toFixed(1)}`).join(" ") });
    drawing.append(line);
  });
  for (const { kept, share } of measured) drawing.append(svg("circle", { class: "past", cx: x(kept), cy: y(share), r: 3 }));
  if (now.share !== null)
    drawing.append(
      svg("line", { class: "drop", x1: x(now.kept), x2: x(now.kept), y1: y(now.share), y2: high - bottom }),
      svg("circle", { class: now.whole ? "now" : "now half", cx: x(now.kept), cy: y(now.share), r: 7 }),
    );
  return drawing;
}

/* Numbers as a strip of squares: one colour for positive, another for negative. */
export function strip(values, { columns, most, opacity = 1, label }) {
  const rows = Math.ceil(values.length / columns);
  const node = html("span", { class: "strip", role: "img", "aria-label": label, style: `--columns:${columns};--rows:${rows};opacity:${opacity}` });
  for (const value of values) {
    const strength = Math.min(1, Math.abs(value) / (most || 1));
    node.append(html("i", { class: value < 0 ? "minus" : "plus", style: `opacity:${(0.08 + 0.92 * strength).toFixed(2)}` }));
  }
  return node;
}
