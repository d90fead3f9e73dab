/* One head for one query, taken apart: scores, softmax, values, output. */

import { html, percent } from "./dom.js";
import { strip } from "./charts.js";

/* found: what model.inspect returned; query: a row; returns an element. */
export function inside({ found, query, queries, keys, onpick, layerName, head }) {
  const scores = found.scores[query], weights = found.weights[query], size = found.q[query].length;
  const strongest = Math.max(...scores.map(Math.abs)), most = Math.max(...found.v.flatMap((row) => [...row].map(Math.abs)));
  const select = html("select", { id: "inside-query", onchange: (event) => onpick(+event.target.value) },
    queries.map((word, i) => html("option", { value: i, selected: i === query }, `${i + 1}. ${word}`)));
  const rows = [...weights].map((weight, key) => html("tr", { class: weight === Math.max(...weights) ? "best" : null },
    html("th", { scope: "row" }, keys[key]),
    html("td", { class: "score" }, html("span", { class: scores[key] < 0 ? "bar minus" : "bar plus", style: `--part:${Math.abs(scores[key]) / strongest}` }), html("b", {}, scores[key].toFixed(1).replace(/^-0\.0$/, "0.0").replace("-", "−"))),
    html("td", { class: "weight" }, html("span", { class: "bar plus", style: `--part:${weight}` }), html("b", {}, percent(weight))),
    html("td", { class: "value" }, strip(found.v[key], { columns: size, most, opacity: 0.18 + 0.82 * weight, label: `value of ${keys[key]}, ${size} numbers` })),
  ));
  const z = found.z[query], output = found.output[query], shares = found.shares[query], all = shares.reduce((a, b) => a + b, 0) || 1;
  const rank = 1 + shares.filter((share) => share > shares[head]).length;
  return html("div", { class: "inside" },
    html("p", { class: "ask" }, html("label", { for: "inside-query" }, "What happens for"), select),
    html("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Scores, weights and values of each key" },
      html("table", {},
        html("thead", {}, html("tr", {},
          html("th", { scope: "col" }, "key"),
          html("th", { scope: "col" }, html("span", { class: "stage" }, "1"), "score ", html("small", {}, `q·k/√${size}`)),
          html("th", { scope: "col" }, html("span", { class: "stage" }, "2"), "softmax"),
          html("th", { scope: "col" }, html("span", { class: "stage" }, "3"), "value"))),
        html("tbody", {}, rows),
        html("tfoot", {}, html("tr", {}, html("th", { scope: "row", colspan: 3 }, "sum of the weighted values"),
          html("td", {}, strip(z, { columns: size, most: Math.max(...z.map(Math.abs)), label: `sum, ${size} numbers` })))))),
    html("p", { class: "out" }, html("span", { class: "stage" }, "4"), html("b", {}, "Output. "),
      `The output matrix turns these ${size} numbers into ${output.length}, which are added to “${queries[query]}”:`),
    strip(output, { columns: 32, most: Math.max(...output.map(Math.abs)), label: `output, ${output.length} numbers` }),
    html("p", { class: "hint" }, `Of what the ${shares.length} heads of ${layerName} add here, this head has ${percent(shares[head] / all)} by length: number ${rank}.`),
    html("div", { class: "shares", role: "img", "aria-label": `Lengths: ${shares.map((share, i) => `head ${i} ${share.toFixed(1)}`).join(", ")}` },
      [...shares].map((share, i) => html("i", { class: i === head ? "this" : null, style: `--part:${share / Math.max(...shares)}` }, html("span", {}, i)))),
  );
}
