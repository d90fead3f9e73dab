/* The words of both languages: numbers, completion, and what a wrong word gets wrong. */

const unaccented = (word) => word.normalize("NFD").replace(/\p{M}/gu, "");
const plain = (word) => unaccented(word).toLowerCase();

/* data.words: a line for each token, "word lexeme side feature feature ..."; features are numbers into data.features,
   each "category value"; data.needs: { category: [phenomena that may ask for it] }. */
export function createLexicon(data) {
  const entries = data.words.split("\n").map((line) => {
    const [word, lexeme, side, ...features] = line.split(" ");
    const told = new Map();
    for (const feature of features) {
      const [category, ...value] = data.features[feature].split(" ");
      told.set(category, value.join(" "));
    }
    return { word, lexeme: lexeme.replaceAll("_", " "), side, told };
  });
  const numbers = new Map(entries.map(({ word }, number) => [word, number]));
  const readable = entries.filter(({ side }) => side !== "target" && side !== "special").map(({ word }) => word);
  const known = new Set(readable);
  const twins = new Map(); // a word and its other form, plain or accented
  for (const word of readable) {
    const bare = unaccented(word);
    if (bare !== word && known.has(bare)) twins.set(word, bare).set(bare, word);
  }

  /* "The dog, slept" -> ["the", "dog", ",", "slept", "."]: with a full stop, as the model has seen no sentence without
     one and goes on writing; and in the spelling that the language has, where only the case differs. */
  const spelled = (word) => [word, word.toLowerCase(), word[0].toUpperCase() + word.slice(1).toLowerCase()].find((one) => known.has(one)) ?? word;
  function split(text) {
    const words = text.normalize("NFC").replace(/([.,])/g, " $1 ").trim().split(/\s+/).filter(Boolean).map(spelled);
    return words.length && words.at(-1) !== "." ? [...words, "."] : words;
  }

  /* Words that begin with the letters given, accents ignored: exact, then short, then long. */
  function complete(letters, many = 8) {
    const start = plain(letters);
    if (!start) return [];
    return readable.filter((word) => plain(word).startsWith(start)).sort((a, b) => a.length - b.length).slice(0, many);
  }

  /* What a translated word says beside its meaning, in words, and both together: as headtools.gloss does. */
  const features = (number) => [...entries[number].told].map(([category, value]) => data.labels[`${category} ${value}`]).filter(Boolean).join(", ");
  const gloss = (number) => `${entries[number].lexeme}${features(number) && ": "}${features(number)}`;

  /* Why one word stands where another should: the phenomena it misses, of those its place needs. */
  function missed(said, right, needed) {
    const a = entries[said], b = entries[right];
    if (a.side !== b.side || a.lexeme !== b.lexeme) return ["another word"];
    const found = new Set();
    for (const category of new Set([...a.told.keys(), ...b.told.keys()])) {
      if (a.told.get(category) === b.told.get(category)) continue;
      const asked = (data.needs[category] ?? []).filter((phenomenon) => !needed || needed.includes(phenomenon));
      for (const phenomenon of needed && asked.length ? asked : [data.plainly[category] ?? category]) found.add(phenomenon);
    }
    return found.size ? [...found] : ["another form"];
  }

  return {
    entries, numbers, readable, split, complete, features, gloss, missed,
    accents: data.accents, // what a word takes in front and behind beside an accented word
    word: (number) => entries[number].word,
    twin: (word) => twins.get(word),
    accented: (word) => word !== unaccented(word),
    topic: (word) => (twins.has(word) ? undefined : entries[numbers.get(word)]?.told.get("topic")), // of a name
    unknown: (words) => words.filter((word) => !known.has(word)),
    ids: (words, end) => [...words.map((word) => numbers.get(word)), end],
  };
}

/* Sets what was said beside what is right: a list of { said, right } with positions, -1 where there is no counterpart.
   A wrong form of a word costs less than another word, so that one word too many does not shift all that follow. */
export function alignWords(said, right, lexicon) {
  const cost = (i, j) => {
    if (said[i] === right[j]) return 0;
    return lexicon.missed(said[i], right[j])[0] === "another word" ? 11 : 5;
  };
  const gap = 7, table = []; // whole numbers: the way back compares sums for equality
  for (let i = 0; i <= said.length; i++) {
    table.push(new Float64Array(right.length + 1));
    for (let j = 0; j <= right.length; j++) {
      if (!i || !j) table[i][j] = gap * (i + j);
      else table[i][j] = Math.min(table[i - 1][j - 1] + cost(i - 1, j - 1), table[i - 1][j] + gap, table[i][j - 1] + gap);
    }
  }
  const pairs = [];
  for (let i = said.length, j = right.length; i || j; ) {
    if (i && j && table[i][j] === table[i - 1][j - 1] + cost(i - 1, j - 1)) pairs.unshift({ said: --i, right: --j });
    else if (i && table[i][j] === table[i - 1][j] + gap) pairs.unshift({ said: --i, right: -1 });
    else pairs.unshift({ said: -1, right: --j });
  }
  return pairs;
}

/* The letters of `right` that `said` lacks, as pieces: [{ text, lacking }]. */
export function spelling(said, right) {
  const n = said.length, m = right.length, common = Array.from({ length: n + 1 }, () => new Uint8Array(m + 1));
  for (let i = n - 1; i >= 0; i--)
    for (let j = m - 1; j >= 0; j--)
      common[i][j] = said[i] === right[j] ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
  const pieces = [];
  for (let i = 0, j = 0; j < m; ) {
    const same = i < n && said[i] === right[j];
    if (!same && i < n && common[i + 1][j] >= common[i][j + 1]) {
      i++;
      continue;
    }
    const last = pieces.at(-1);
    if (last && last.lacking === !same) last.text += right[j];
    else pieces.push({ text: right[j], lacking: !same });
    j++;
    if (same) i++;
  }
  return pieces;
}
