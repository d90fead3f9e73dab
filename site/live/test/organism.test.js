/* The page's arithmetic against torch's. The folder LIVE_REFERENCE holds the page and what torch says, reference.json;
   tests/tools/test_live_page.py makes both and runs this file: node --test site/live/test/ */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { createBackground, createTrial } from "../background.js";
import { half, tensorsOf } from "../half.js";
import { alignWords, createLexicon, spelling } from "../lexicon.js";
import { accuracy, countHeads, createModel, listSites } from "../organism.js";

const folder = process.env.LIVE_REFERENCE;
const skip = folder ? false : "LIVE_REFERENCE names no folder; run pytest tests/tools/test_live_page.py";
const CLOSE = 1e-4;

function load() {
  delete globalThis.headtoolsLive;
  for (const name of ["weights.js", "course.js"]) (0, eval)(readFileSync(join(folder, name), "utf8"));
  const { weights, course } = globalThis.headtoolsLive;
  const model = createModel({ config: weights.config, tensors: tensorsOf(weights.half, weights.tensors) });
  const reference = JSON.parse(readFileSync(join(folder, "reference.json"), "utf8"));
  return { config: weights.config, course, model, reference, lexicon: createLexicon(course.language) };
}
const { config, course, model, reference, lexicon } = skip ? {} : load();

const floats = (base64) => {
  const bytes = Buffer.from(base64, "base64");
  return new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
};
const furthest = (a, b) => {
  assert.equal(a.length, b.length);
  return a.reduce((most, value, i) => Math.max(most, Math.abs(value - b[i])), 0);
};
const gatesOf = (off) => Float32Array.from({ length: countHeads(config) }, (_, head) => (off.includes(head) ? 0 : 1));
const idsOf = (text) => lexicon.ids(text.split(" "), config.end);
const sentence = (number) => ({ ids: idsOf(course.sentences[number].source), target: idsOf(course.sentences[number].target) });

test("half precision is read bit by bit", () => {
  for (const [bits, value] of [[0x3c00, 1], [0xc000, -2], [0x0001, 2 ** -24], [0x7bff, 65504], [0x3555, 0.333251953125]]) assert.equal(half(bits), value);
});

test("letters that a wrong word lacks are found", () => {
  assert.deepEqual(spelling("zanak", "s'zanak"), [{ text: "s'", lacking: true }, { text: "zanak", lacking: false }]);
  assert.equal(spelling("lya'n", "lyo'n").map(({ text }) => text).join(""), "lyo'n");
});

test("the trial of a sentence is left for another one, and taken up again", async () => {
  const model = { translate: (ids, gates) => ({ words: [...ids, ...gates] }) }, heard = [];
  let finished;
  const background = createBackground({ model });
  const trial = createTrial(background, { total: 10, onProgress: (found) => {
    heard.push(found[0]?.[0]);
    if (found.length === 11) finished([...found]);
  } });
  const whole = (word) => new Promise((resolve) => {
    finished = resolve;
    trial.want([word]);
  });
  trial.want([1]);
  const second = await whole(2);
  assert.ok(!heard.includes(1));
  assert.deepEqual(second[0], [2, ...new Array(10).fill(1)]); // no head is off
  for (let head = 0; head < 10; head++) assert.equal(second[head + 1].indexOf(0, 1), head + 1);
  assert.equal((await whole(1)).length, 11);
});

test("a translation that goes on and on is set beside the right one", { skip }, () => {
  const right = sentence(0).target, said = Array.from({ length: 40 }, () => right[0]), pairs = alignWords(said, right, lexicon);
  assert.deepEqual(pairs.map((pair) => pair.said).filter((i) => i >= 0), [...said.keys()]);
  assert.deepEqual(pairs.map((pair) => pair.right).filter((j) => j >= 0), [...right.keys()]);
});

test("logits are torch's, with all heads on and with some off", { skip }, () => {
  for (const { sentence: number, off, logits } of reference.logits) {
    const { ids, target } = sentence(number);
    const error = furthest(model.logits(ids, target, gatesOf(off)), floats(logits));
    assert.ok(error < CLOSE, `sentence ${number}, ${off.length} heads off: ${error}`);
  }
});

test("maps are torch's, head for head", { skip }, () => {
  const { sentence: number, off, maps } = reference.maps, { ids, target } = sentence(number);
  for (let head = 0; head < countHeads(config); head += 5) {
    const found = model.inspect(ids, target, gatesOf(off), head), want = floats(maps[head]), wide = want.length / found.weights.length;
    const rows = found.weights.flatMap((row) => [...row, ...new Array(wide - row.length).fill(0)]);
    assert.ok(furthest(rows, want) < CLOSE, `head ${head}`);
    for (const row of found.weights) assert.ok(Math.abs(row.reduce((a, b) => a + b) - 1) < 1e-5);
  }
});

test("queries, keys, values and what a head hands on are torch's", { skip }, () => {
  const { sentence: number, heads } = reference.inside, { ids, target } = sentence(number);
  for (const { head, ...want } of heads) {
    const found = model.inspect(ids, target, gatesOf([]), head);
    for (const name of ["q", "k", "v", "z", "output"]) {
      const error = furthest(found[name].flatMap((row) => [...row]), floats(want[name]));
      assert.ok(error < CLOSE, `${name} of head ${head}: ${error}`);
    }
  }
});

test("translations are those of headtools, with all heads on and with some off", { skip }, () => {
  for (const { off, said } of reference.translations)
    said.forEach((text, number) => {
      const { words } = model.translate(sentence(number).ids, gatesOf(off), { maps: false });
      assert.equal(words.slice(0, -1).map(lexicon.word).join(" "), text);
    });
});

test("the accuracy is the library's", { skip }, () => {
  for (const { off, sentences, share } of reference.accuracy) {
    const shares = Array.from({ length: sentences }, (_, number) => accuracy(model, sentence(number), gatesOf(off)));
    assert.ok(Math.abs(shares.reduce((a, b) => a + b) / sentences - share) < CLOSE);
  }
});

test("maps of a translation have a row for each word", { skip }, () => {
  const { ids } = sentence(0), { words, maps } = model.translate(ids, gatesOf([]));
  for (const { kind, first } of listSites(config)) {
    assert.equal(maps[first].length, kind === "encoder" ? ids.length : words.length);
    assert.equal(maps[first].at(-1).length, kind === "decoder" ? words.length : ids.length);
  }
});

test("every word of the built-in sentences is known, and completion finds words without their accents", { skip }, () => {
  for (const { source, target, from, needs } of course.sentences) {
    assert.deepEqual(lexicon.unknown(source.split(" ")), []);
    assert.ok(target.split(" ").every((word) => lexicon.numbers.has(word)));
    assert.equal(from.length, needs.length);
  }
  const accented = lexicon.readable.find((word) => lexicon.twin(word) && /\p{M}/u.test(word.normalize("NFD")));
  assert.ok(lexicon.complete(lexicon.twin(accented).slice(0, 3), 99).includes(accented));
  assert.deepEqual(lexicon.split(" a b,c . "), ["a", "b", ",", "c", "."]);
});

test("each wrong word is blamed on what its place needs, or on nothing that it does not", { skip }, () => {
  const phenomena = Object.keys(course.phenomena);
  for (const { off, said } of reference.translations)
    said.forEach((text, number) => {
      const { target, needs } = course.sentences[number], right = target.split(" ").map((word) => lexicon.numbers.get(word));
      const wrote = text.split(" ").map((word) => lexicon.numbers.get(word));
      for (const { said: i, right: j } of alignWords(wrote, right, lexicon)) {
        if (i < 0 || j < 0 || wrote[i] === right[j]) continue;
        const needed = needs[j].map((one) => phenomena[one]);
        for (const missed of lexicon.missed(wrote[i], right[j], needed))
          assert.ok(needed.includes(missed) || !phenomena.includes(missed), `${missed} for ${target.split(" ")[j]}`);
      }
    });
});
