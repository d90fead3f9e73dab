/* What is measured beside the page: in a worker, or in idle moments where there is none. */

import { accuracy, createModel } from "./organism.js";

const MEASURES = {
  accuracy: (model, { gates, tasks }) => tasks.map((task) => accuracy(model, task, gates)),
  /* Translations without one head each; -1 is none. */
  without: (model, { ids, heads, total }) => heads.map((off) =>
    model.translate(ids, Float32Array.from({ length: total }, (_, head) => (head === off ? 0 : 1)), { maps: false }).words),
};

/* One portion at a time is measured, of the series that was wanted last and has one left. background.want(series), with
   series = { portion, done }: portion() gives { measure, ... } or null, done(portion, found) takes what MEASURES found. */
export function createBackground({ config, tensors, model }) {
  const worker = startWorker({ config, tensors });
  let all = [], busy = false;

  function next() {
    if (busy) return;
    for (const { portion, done } of all) {
      const asked = portion();
      if (!asked) continue;
      busy = true;
      const settle = (found) => {
        busy = false;
        done(asked, found);
        next();
      };
      if (worker) {
        worker.onmessage = ({ data }) => settle(data);
        worker.postMessage(asked);
      } else setTimeout(() => settle(MEASURES[asked.measure](model, asked)), 20);
      return;
    }
  }

  return {
    want(series) {
      all = [series, ...all.filter((other) => other !== series)];
      next();
    },
  };
}

/* Translations of a sentence without each head alone. want(ids) leaves the sentence before; onProgress(found): found[0]
   is the translation by the whole model, found[1 + head] that without a head, as far as they are known. */
export function createTrial(background, { total, onProgress, portion = 4 }) {
  const results = new Map(); // numbers of words as text -> translations
  let wanted = null;
  const foundFor = (ids) => results.get(ids.join(" "));
  const series = {
    portion() {
      const done = foundFor(wanted).length;
      const heads = Array.from({ length: Math.min(portion, total + 1 - done) }, (_, i) => done + i - 1);
      return heads.length ? { measure: "without", ids: wanted, heads, total } : null;
    },
    done({ ids }, found) {
      foundFor(ids).push(...found);
      if (foundFor(ids) === foundFor(wanted)) onProgress(foundFor(wanted));
    },
  };
  return {
    want(ids) {
      if (ids === wanted) return;
      wanted = ids;
      if (!foundFor(ids)) results.set(ids.join(" "), []);
      onProgress(foundFor(ids));
      background.want(series);
    },
  };
}

/* Accuracy over the built-in sentences. want(gates) measures these gates, and leaves those wanted before;
   onProgress({ gates, done, all, accuracy }) tells what is known so far. */
export function createMeter(background, { tasks, onProgress, portion = 5 }) {
  const results = new Map(); // gates as text -> shares of words right, sentence by sentence
  let wanted = null;
  const sharesOf = (gates) => results.get(gates.join(""));

  function report() {
    const shares = sharesOf(wanted), mean = shares.length ? shares.reduce((a, b) => a + b, 0) / shares.length : null;
    onProgress({ gates: wanted, done: shares.length, all: tasks.length, accuracy: mean });
  }

  const series = {
    portion() {
      const done = sharesOf(wanted).length, some = tasks.slice(done, done + portion);
      return some.length ? { measure: "accuracy", gates: wanted, tasks: some } : null;
    },
    done({ gates }, found) {
      sharesOf(gates).push(...found);
      if (sharesOf(gates) === sharesOf(wanted)) report();
    },
  };
  return {
    want(gates) {
      wanted = Float32Array.from(gates);
      if (!sharesOf(wanted)) results.set(wanted.join(""), []);
      report();
      background.want(series);
    },
  };
}

/* What runs in the worker: first the model, then portions. */
export function work() {
  let model;
  self.onmessage = ({ data }) => {
    if (data.config) model = createModel(data);
    else self.postMessage(MEASURES[data.measure](model, data));
  };
}

/* A page opened from disk may not load a worker from a file, so the bundle hands over its own text. */
function startWorker(model) {
  try {
    const source = globalThis.headtoolsLive.source("./background.js", "work");
    const worker = new Worker(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
    worker.postMessage(model);
    return worker;
  } catch {
    return null;
  }
}
