/* Accuracy over the built-in sentences, measured beside the page: in a worker, or in idle moments where there is none. */

import { accuracy, createModel } from "./organism.js";

/* createMeter({ config, tensors, tasks, onProgress }): meter.want(gates) measures these gates, and forgets those wanted
   before; onProgress({ gates, done, all, accuracy }) tells what is known so far. */
export function createMeter({ config, tensors, tasks, onProgress, model }) {
  const portion = 5, results = new Map(); // gates as text -> shares of words right, sentence by sentence
  let wanted = null, busy = false;
  const worker = startWorker({ config, tensors });
  const key = (gates) => gates.join("");

  function report() {
    const shares = results.get(key(wanted));
    const mean = shares.length ? shares.reduce((a, b) => a + b, 0) / shares.length : null;
    onProgress({ gates: wanted, done: shares.length, all: tasks.length, accuracy: mean });
  }

  function next() {
    const shares = results.get(key(wanted));
    if (busy || shares.length === tasks.length) return;
    busy = true;
    const gates = wanted, some = tasks.slice(shares.length, shares.length + portion);
    const done = (found) => {
      busy = false;
      shares.push(...found);
      if (gates === wanted) report();
      next();
    };
    if (worker) {
      worker.onmessage = ({ data }) => done(data);
      worker.postMessage({ gates, tasks: some });
    } else setTimeout(() => done(some.map((task) => accuracy(model, task, gates))), 20);
  }

  return {
    want(gates) {
      wanted = Float32Array.from(gates);
      if (!results.has(key(wanted))) results.set(key(wanted), []);
      report();
      next();
    },
  };
}

/* What runs in the worker: first the model, then portions of sentences. */
export function work() {
  let model;
  self.onmessage = ({ data }) => {
    if (data.config) model = createModel(data);
    else self.postMessage(data.tasks.map((task) => accuracy(model, task, data.gates)));
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
