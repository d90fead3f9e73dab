/* The shipped translation model in plain JavaScript: a Marian transformer, for one sentence at a time.

     const model = createModel({ config, tensors });    tensors: { name: Float32Array }, as in model.safetensors
     model.translate(ids, gates)                        greedy translation: { words, maps }
     model.predict(ids, target, gates)                  the likeliest word at each place, given the right words before
     model.logits(ids, target, gates)                   the same as numbers, (target, vocabulary)
     model.inspect(ids, target, gates, head)            one head taken apart: queries, keys, scores, weights, values, output

   Heads have one number each, in the order encoder, decoder, cross; within a kind by layer, within a layer by head.
   gates[number] multiplies what a head hands on: 1 leaves it as it is, 0 switches it off. Where a head attends is
   computed all the same. Matrices are Float32Arrays, row after row; `ids` end with the end mark. */

const KINDS = ["encoder", "decoder", "cross"];
const LANES = 4; // outputs computed together: four weights lie side by side, and each input is read once for all four

/* The layers of attention in the order of the numbers of their heads. */
export function listSites(config) {
  const layers = { encoder: config.encoderLayers, decoder: config.decoderLayers, cross: config.decoderLayers };
  let first = 0;
  return KINDS.flatMap((kind) => Array.from({ length: layers[kind] }, (_, layer) => {
    const site = { kind, layer, first, heads: config.heads };
    first += config.heads;
    return site;
  }));
}

export function countHeads(config) {
  return config.heads * (config.encoderLayers + 2 * config.decoderLayers);
}

/* A linear map, its weight (outs, ins) laid out in panels of LANES outputs; missing outputs of the last panel are 0. */
function packed(weight, bias, outs, ins) {
  const panels = Math.ceil(outs / LANES), lanes = new Float32Array(panels * ins * LANES), offset = new Float32Array(panels * LANES);
  for (let out = 0; out < outs; out++) {
    const at = Math.floor(out / LANES) * ins * LANES + (out % LANES);
    for (let i = 0; i < ins; i++) lanes[at + i * LANES] = weight[out * ins + i];
    offset[out] = bias ? bias[out] : 0;
  }
  return { lanes, offset, outs, ins, panels };
}

/* x (rows, ins) -> (rows, outs), for all panels or those from `from` to `to`. */
function apply(map, x, rows, from = 0, to = map.panels) {
  const { lanes, offset, ins } = map, outs = Math.min(map.outs, to * LANES) - from * LANES;
  const y = new Float32Array(rows * outs), four = new Float32Array(2 * LANES);
  for (let panel = from; panel < to; panel++) {
    const column = (panel - from) * LANES, many = Math.min(LANES, outs - column), bias = offset.subarray(panel * LANES, panel * LANES + LANES);
    for (let row = 0; row < rows; row += 2) {
      if (row + 1 < rows) twoRows(lanes, panel * ins * LANES, x, row * ins, ins, four);
      else oneRow(lanes, panel * ins * LANES, x, row * ins, ins, four);
      for (let i = 0, at = row * outs + column; i < many; i++) {
        y[at + i] = four[i] + bias[i];
        if (row + 1 < rows) y[at + outs + i] = four[LANES + i] + bias[i];
      }
    }
  }
  return y;
}

/* The product of one panel with a row of x, or with two at once, which reads each weight once for both. */
function oneRow(lanes, start, x, at, ins, four) {
  let a0 = 0, a1 = 0, a2 = 0, a3 = 0;
  for (let i = 0, w = start; i < ins; i++, w += LANES) {
    const a = x[at + i];
    a0 += lanes[w] * a; a1 += lanes[w + 1] * a; a2 += lanes[w + 2] * a; a3 += lanes[w + 3] * a;
  }
  four[0] = a0; four[1] = a1; four[2] = a2; four[3] = a3;
}

function twoRows(lanes, start, x, at, ins, four) {
  let a0 = 0, a1 = 0, a2 = 0, a3 = 0, b0 = 0, b1 = 0, b2 = 0, b3 = 0;
  for (let i = 0, w = start, next = at + ins; i < ins; i++, w += LANES) {
    const a = x[at + i], b = x[next + i], w0 = lanes[w], w1 = lanes[w + 1], w2 = lanes[w + 2], w3 = lanes[w + 3];
    a0 += w0 * a; a1 += w1 * a; a2 += w2 * a; a3 += w3 * a;
    b0 += w0 * b; b1 += w1 * b; b2 += w2 * b; b3 += w3 * b;
  }
  four[0] = a0; four[1] = a1; four[2] = a2; four[3] = a3;
  four[4] = b0; four[5] = b1; four[6] = b2; four[7] = b3;
}

/* x += y, and every row of x normalised: mean 0, variance 1, then gain and shift. */
function addAndNormalise(x, y, rows, { gain, shift }) {
  const width = gain.length;
  for (let row = 0; row < rows; row++) {
    const at = row * width;
    let mean = 0, variance = 0;
    for (let i = 0; i < width; i++) mean += x[at + i] += y[at + i];
    mean /= width;
    for (let i = 0; i < width; i++) variance += (x[at + i] - mean) ** 2;
    const scale = 1 / Math.sqrt(variance / width + 1e-5);
    for (let i = 0; i < width; i++) x[at + i] = (x[at + i] - mean) * scale * gain[i] + shift[i];
  }
}

export function createModel({ config, tensors }) {
  const { width, inner, heads, vocabulary, start, end, longest } = config, size = width / heads;
  const sites = listSites(config), siteOf = (kind, layer) => sites.find((site) => site.kind === kind && site.layer === layer);

  const map = (name, outs, ins) => packed(tensors[`${name}.weight`], tensors[`${name}.bias`], outs, ins);
  const norm = (name) => ({ gain: tensors[`${name}.weight`], shift: tensors[`${name}.bias`] });
  const attention = (name, site) => ({
    site,
    query: map(`${name}.q_proj`, width, width), key: map(`${name}.k_proj`, width, width),
    value: map(`${name}.v_proj`, width, width), out: map(`${name}.out_proj`, width, width), norm: norm(`${name}_layer_norm`),
  });
  const layersOf = (side, many) => Array.from({ length: many }, (_, i) => {
    const name = `model.${side}.layers.${i}`;
    return {
      self: attention(`${name}.self_attn`, siteOf(side, i)),
      cross: side === "decoder" ? attention(`${name}.encoder_attn`, siteOf("cross", i)) : null,
      widen: map(`${name}.fc1`, inner, width), narrow: map(`${name}.fc2`, width, inner), norm: norm(`${name}.final_layer_norm`),
    };
  });
  const encoder = layersOf("encoder", config.encoderLayers), decoder = layersOf("decoder", config.decoderLayers);
  const words = packed(tensors["model.shared.weight"], tensors.final_logits_bias, vocabulary, width);

  /* Word vectors times the root of the width, plus sinusoidal positions: sines in the first half, cosines in the second. */
  function embed(ids, past = 0) {
    const x = new Float32Array(ids.length * width), half = width / 2, scale = config.scaleEmbedding ? Math.sqrt(width) : 1;
    ids.forEach((id, row) => {
      const at = Math.floor(id / LANES) * width * LANES + (id % LANES);
      for (let i = 0; i < width; i++) {
        const angle = (past + row) / 10000 ** ((2 * (i % half)) / width);
        x[row * width + i] = scale * words.lanes[at + i * LANES] + Math.fround(i < half ? Math.sin(angle) : Math.cos(angle));
      }
    });
    return x;
  }

  /* Every head mixes values by the softmax of its scores. `seen(row)` tells how many keys a row may attend to;
     `watch(head, row, weights, scores)` is called for each row of each head's map. */
  function mix(queries, rows, keys, values, seen, site, gates, watch) {
    const z = new Float32Array(rows * width), scale = 1 / Math.sqrt(size);
    for (let head = 0; head < heads; head++) {
      const gate = gates[site.first + head], from = head * size;
      if (!gate && !watch) continue;
      for (let row = 0; row < rows; row++) {
        const many = seen(row), scores = new Float32Array(many), weights = new Float32Array(many), q = row * width + from;
        let most = -Infinity, sum = 0;
        for (let key = 0; key < many; key++) {
          let dot = 0;
          for (let i = 0, k = key * width + from; i < size; i++) dot += queries[q + i] * keys[k + i];
          scores[key] = dot * scale;
          if (scores[key] > most) most = scores[key];
        }
        for (let key = 0; key < many; key++) sum += weights[key] = Math.exp(scores[key] - most);
        for (let key = 0; key < many; key++) {
          const weight = (weights[key] /= sum) * gate;
          for (let i = 0, v = key * width + from; i < size; i++) z[q + i] += weight * values[v + i];
        }
        if (watch) watch(site.first + head, row, weights, scores);
      }
    }
    return z;
  }

  function feedForward(x, rows, layer) {
    const hidden = apply(layer.widen, x, rows);
    for (let i = 0; i < hidden.length; i++) if (hidden[i] < 0) hidden[i] = 0;
    addAndNormalise(x, apply(layer.narrow, hidden, rows), rows, layer.norm);
  }

  /* The encoder's features of a sentence. `tap` sees the inside of every layer of attention (for inspect). */
  function encode(ids, gates, watch, tap) {
    const rows = ids.length, x = embed(ids);
    for (const layer of encoder) {
      const { self } = layer, q = apply(self.query, x, rows), k = apply(self.key, x, rows), v = apply(self.value, x, rows);
      const z = mix(q, rows, k, v, () => rows, self.site, gates, watch);
      tap?.(self, { q, k, v, z, rows, keys: rows });
      addAndNormalise(x, apply(self.out, z, rows), rows, self.norm);
      feedForward(x, rows, layer);
    }
    return x;
  }

  /* What the decoder keeps while it writes: keys and values of the source, and of the words written so far. */
  function begin(memory, sources) {
    return {
      sources, written: 0,
      layers: decoder.map(({ cross }) => ({
        there: { k: apply(cross.key, memory, sources), v: apply(cross.value, memory, sources) },
        own: { k: new Float32Array((longest + 1) * width), v: new Float32Array((longest + 1) * width) },
      })),
    };
  }

  /* Reads the next words of the translation, one or many, and returns a row of features for each. */
  function read(state, ids, gates, watch, tap) {
    const rows = ids.length, past = state.written, x = embed(ids, past);
    decoder.forEach((layer, l) => {
      const { self, cross } = layer, { own, there } = state.layers[l];
      const q = apply(self.query, x, rows);
      own.k.set(apply(self.key, x, rows), past * width);
      own.v.set(apply(self.value, x, rows), past * width);
      const z = mix(q, rows, own.k, own.v, (row) => past + row + 1, self.site, gates, watch);
      tap?.(self, { q, ...own, z, rows, keys: past + rows });
      addAndNormalise(x, apply(self.out, z, rows), rows, self.norm);
      const question = apply(cross.query, x, rows);
      const fetched = mix(question, rows, there.k, there.v, () => state.sources, cross.site, gates, watch);
      tap?.(cross, { q: question, ...there, z: fetched, rows, keys: state.sources });
      addAndNormalise(x, apply(cross.out, fetched, rows), rows, cross.norm);
      feedForward(x, rows, layer);
    });
    state.written += rows;
    return x;
  }

  /* The likeliest word of each row; the vocabulary in slices that stay in the processor's cache. */
  function likeliest(x, rows) {
    const best = new Array(rows).fill(0), score = new Array(rows).fill(-Infinity), slice = 64;
    for (let from = 0; from < words.panels; from += slice) {
      const to = Math.min(words.panels, from + slice), y = apply(words, x, rows, from, to), many = y.length / rows;
      for (let row = 0; row < rows; row++)
        for (let i = 0; i < many; i++)
          if (y[row * many + i] > score[row]) {
            score[row] = y[row * many + i];
            best[row] = from * LANES + i;
          }
    }
    return best;
  }

  /* { words, maps }: words end with the end mark; maps[head] is a list of rows, one for each query. */
  function translate(ids, gates, { maps = true } = {}) {
    const rows = maps ? Array.from({ length: countHeads(config) }, () => []) : null;
    const watch = maps ? (head, row, weights) => rows[head].push(weights) : undefined;
    const state = begin(encode(ids, gates, watch), ids.length), written = [];
    for (let last = start; last !== end; written.push(last)) {
      [last] = likeliest(read(state, [last], gates, watch), 1);
      if (written.length === longest - 1) last = end; // the longest translation is cut by the end mark
    }
    return { words: written, maps: rows };
  }

  const decode = (ids, target, gates, watch, tap) =>
    read(begin(encode(ids, gates, watch, tap), ids.length), [start, ...target.slice(0, -1)], gates, watch, tap);

  const predict = (ids, target, gates) => likeliest(decode(ids, target, gates), target.length);

  const logits = (ids, target, gates) => apply(words, decode(ids, target, gates), target.length);

  /* One head taken apart. Rows of `q` are queries, rows of `k` and `v` keys, each `size` wide; `scores` and `weights`
     are lists of rows; `z` is what the head hands on, `output` what that adds to a word, `shares` the lengths of what
     each head of its layer adds. */
  function inspect(ids, target, gates, number) {
    const scores = [], weights = [];
    let inside;
    const watch = (head, row, w, s) => {
      if (head === number) [weights[row], scores[row]] = [w, s];
    };
    decode(ids, target, gates, watch, (layer, found) => {
      if (number < layer.site.first || number >= layer.site.first + heads) return;
      const { q, k, v, z, rows, keys } = found, head = number - layer.site.first;
      const cut = (x, many) => Array.from({ length: many }, (_, row) => x.slice(row * width + head * size, row * width + (head + 1) * size));
      const outputs = Array.from({ length: heads }, (_, one) => written(layer.out, z, rows, one));
      const long = (x) => Math.sqrt(x.reduce((sum, value) => sum + value * value, 0));
      inside = {
        q: cut(q, rows), k: cut(k, keys), v: cut(v, keys), z: cut(z, rows), output: outputs[head],
        shares: Array.from({ length: rows }, (_, row) => outputs.map((output) => long(output[row]))),
      };
    });
    return { ...inside, scores, weights };
  }

  /* What one head adds to each word: its part of z through its columns of the output projection, without the bias. */
  function written(out, z, rows, head) {
    const only = new Float32Array(rows * width);
    for (let row = 0; row < rows; row++) {
      const from = row * width + head * size;
      only.set(z.subarray(from, from + size), from);
    }
    const y = apply({ ...out, offset: new Float32Array(out.offset.length) }, only, rows);
    return Array.from({ length: rows }, (_, row) => y.slice(row * width, (row + 1) * width));
  }

  return { config, sites, translate, predict, logits, inspect };
}

/* The share of its words that a model writes right, given the right words before: 0 to 1. */
export function accuracy(model, { ids, target }, gates) {
  const said = model.predict(ids, target, gates);
  return said.filter((word, i) => word === target[i]).length / target.length;
}
