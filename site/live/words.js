/* A translation, word by word, beside the right one. */

import { html } from "./dom.js";
import { alignWords, spelling } from "./lexicon.js";

/* said: numbers of the words written; sentence: { words, right, from, needs }, where `needs` is null for a sentence without
   a translation by the grammar. Gives { items, mistakes }: list items, and { said, right, missed } for each wrong word. */
export function translated({ said, sentence, lexicon }) {
  const mistakes = [];
  const items = alignWords(said, sentence.right, lexicon).map((pair) => {
    const { said: i, right: j } = pair, at = j >= 0 ? sentence.from[j] : undefined;
    const from = html("span", { class: "from" }, at ? sentence.words[at - 1] : "\u00a0");
    const properties = { "data-at": at, title: i >= 0 ? lexicon.gloss(said[i]) : null };
    if (i >= 0 && j >= 0 && said[i] === sentence.right[j]) return html("li", properties, from, html("span", { class: "said" }, lexicon.word(said[i])));
    const missed = i < 0 ? ["missing"] : j < 0 ? ["one too many"] : lexicon.missed(said[i], sentence.right[j], sentence.needs?.[j]);
    mistakes.push({ ...pair, missed });
    const text = i >= 0 ? lexicon.word(said[i]) : "–";
    const right = j >= 0 ? spelling(i >= 0 ? text : "", lexicon.word(sentence.right[j])).map(({ text: part, lacking }) => (lacking ? html("b", {}, part) : part)) : "–";
    return html("li", { ...properties, class: "wrong" }, from, html("span", { class: "said" }, text),
      html("span", { class: "right" }, html("span", { class: "hidden" }, "should be "), right), html("span", { class: "missed" }, missed.join(", ")));
  });
  return { items, mistakes };
}
