/* What the card of a word says: rules of the language, the words that tell, the heads that read them. */

import { html } from "./dom.js";

const quoted = (word) => `“${word}”`;
const listed = (items) => items.join(items.length === 2 ? " and " : ", ");
const title = (word, about) => html("p", { class: "title" }, html("b", {}, word), ` ${about}`);

/* at: the number of a source word; readers(phenomenon, query, key): the heads that fetch it from there, as text. */
export function aboutSource(at, { sentence, lexicon, readers }) {
  const { words } = sentence, word = words[at - 1], topic = lexicon.topic(word);
  if (topic) return [
    title(word, "a name"),
    html("p", {}, `It stays as it is, and takes no accent. It tells the topic of the sentence, ${topic}, which small words and words of several senses must show.`),
  ];
  const [front, end] = lexicon.accents, accented = lexicon.accented(word);
  const near = [[at + 1, `begins with ${front}`, "left accent"], [at - 1, `ends in ${end}`, "right accent"]].filter(([number]) => lexicon.twin(words[number - 1] ?? ""));
  const heard = listed(near.map(([number, how]) => `the translation of ${quoted(words[number - 1])} ${how}`));
  const reading = near.map(([number, , accent]) => [number, readers(accent, number, at)]).filter(([, heads]) => heads)
    .map(([number, heads]) => `for ${quoted(words[number - 1])} by ${heads}`);
  return [
    title(word, accented ? "with an accent; a press takes it away" : "without an accent; a press gives it one"),
    html("p", {}, !heard ? "No neighbour shows its accent." : accented
      ? `The accent says nothing about the word itself: ${heard}.` : `With an accent, it would be heard in its neighbours: ${heard}.`),
    ...(reading.length ? [html("p", { class: "hint" }, `Read ${reading.join(", ")}.`)] : []),
  ];
}

/* pair: positions of the word said and of the right one, -1 for none; breakers: heads without which this word is wrong. */
export function aboutWord({ said: i, right: j, missed = [] }, { sentence, said, lexicon, rules, readers, breakers }) {
  if (j < 0) return [title(lexicon.word(said[i]), quoted(lexicon.gloss(said[i]))), html("p", {}, "This word is one too many.")];
  const at = sentence.from[j], right = sentence.right[j], source = sentence.words[at - 1];
  const nodes = [title(i < 0 ? "–" : lexicon.word(said[i]), i < 0 ? "a word is missing" : quoted(lexicon.gloss(said[i])))];
  if (i < 0 || said[i] !== right) nodes.push(html("p", {}, "Should be ", html("b", { class: "right" }, lexicon.word(right)), ` ${quoted(lexicon.gloss(right))}`));
  if (at && lexicon.topic(source)) return [...nodes, html("p", {}, `A name: it stays as it is, and its topic is ${lexicon.topic(source)}.`)];
  if (at && !lexicon.twin(source)) return [...nodes, html("p", {}, "Punctuation is the same in both languages.")];
  const told = at ? sentence.told(j) : [];
  nodes.push(html("ul", {}, told.map(([name, numbers]) => {
    const words = numbers.map((number) => quoted(sentence.words[number - 1])), heads = numbers.map((number) => readers(name, at, number)).filter(Boolean);
    return html("li", { class: missed.includes(name) ? "lost" : null }, html("b", {}, name), `: ${rules[name]}.`,
      words.length ? html("span", {}, ` Told by ${listed(words)}${heads.length ? `, read by ${listed(heads)}` : ""}.`) : null);
  })));
  if (breakers.length) nodes.push(html("p", { class: "hint" }, `Switched off alone, ${breakers.join(" or ")} changes this word.`));
  return nodes;
}
