// What bertviz 1.4.1 calls of require.js, jQuery and d3, written for this purpose: 4 kB, where they have 340.
function $(what) {
  const made = /^<(\w+)\s*\/?>$/.exec(what);
  const nodes = made ? [document.createElement(made[1])] : [...document.querySelectorAll(what)];
  const all = {nodes};
  const each = (name, act) => { all[name] = (a, b) => { nodes.forEach(n => act(n, a, b)); return all; }; };
  each('append', (n, list) => list.nodes.forEach(child => n.appendChild(child)));
  each('empty', n => { n.textContent = ''; });
  each('val', (n, v) => { n.value = v; });
  each('text', (n, t) => { n.textContent = t; });
  each('attr', (n, k, v) => n.setAttribute(k, v));
  each('change', n => n.dispatchEvent(new Event('change')));
  each('on', (n, name, act) => n.addEventListener(name, act));
  return all;
}
class Selection {  // groups of nodes; a node of an entering group is {host, __data__}, which append turns into a child
  constructor(groups, parents) { this.groups = groups; this.parents = parents; }
  each(act) { this.groups.forEach(g => g.forEach((n, i) => n && act(n, i))); return this; }
  set(value, act) {
    return this.each((n, i) => act(n, typeof value === 'function' ? value.call(n, n.__data__, i) : value));
  }
  attr(k, value) { return this.set(value, (n, v) => v == null ? n.removeAttribute(k) : n.setAttribute(k, v)); }
  style(k, value) { return this.set(value, (n, v) => n.style.setProperty(k, v)); }
  text(value) { return this.set(value, (n, v) => { n.textContent = v; }); }
  classed(k, on) { return this.each(n => n.classList.toggle(k, on)); }
  on(name, act) { return this.each((n, i) => n.addEventListener(name, () => act.call(n, n.__data__, i))); }
  remove() { return this.each(n => n.remove()); }
  child(find) {
    return new Selection(this.groups.map(g => g.map(n => {
      const found = n && find(n);
      if (found && '__data__' in n) found.__data__ = n.__data__;
      return found;
    })), this.parents);
  }
  select(what) { return this.child(n => n.querySelector(what)); }
  append(name) {
    name = name.replace('svg:', '');
    return this.child(n => (n.host || n).appendChild(document.createElementNS('http://www.w3.org/2000/svg', name)));
  }
  selectAll(what) {
    const parents = this.groups.flat().filter(Boolean);
    return new Selection(parents.map(n => [...n.querySelectorAll(what)]), parents);
  }
  data(value) {
    const entering = this.groups.map((g, j) => {
      const host = this.parents[j];
      const values = typeof value === 'function' ? value.call(host, host.__data__, j) : value;
      return values.map((v, i) => { if (g[i]) { g[i].__data__ = v; } else { return {host, __data__: v}; } });
    });
    this.enter = () => new Selection(entering, this.parents);
    return this;
  }
}
const d3 = {
  version: 'stand-in',
  schemeCategory10: ['#1f77b4', '#ff7f0e', '#2ca02c', '#d62728', '#9467bd',
                     '#8c564b', '#e377c2', '#7f7f7f', '#bcbd22', '#17becf'],
  scaleOrdinal: colours => i => colours[i % colours.length],
  select: what => {
    const node = typeof what === 'string' ? document.querySelector(what) : what;
    return new Selection([[node]], [document.documentElement]);
  },
  hsl: hex => {
    const [r, g, b] = [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16) / 255);
    const high = Math.max(r, g, b), low = Math.min(r, g, b), range = high - low, l = (high + low) / 2;
    const h = !range ? 0 : high === r ? (g - b) / range : high === g ? (b - r) / range + 2 : (r - g) / range + 4;
    const s = range ? range / (1 - Math.abs(2 * l - 1)) : 0;
    return {h: h * 60, s, l, toString() {  // less than no saturation turns the hue round, and grey has no hue to turn
      const turn = this.s < 0 ? 180 : 0, much = range ? Math.abs(this.s) : 0;
      return `hsl(${this.h + turn} ${much * 100}% ${this.l * 100}%)`;
    }};
  },
};
const requirejs = (names, act) => act(...names.map(name => name === 'd3' ? d3 : $));
function weights(packed, shape) {  // hundredths, one byte each
  const bytes = atob(packed);
  let at = 0;
  const build = depth => Array.from({length: shape[depth]},
    () => depth === 3 ? bytes.charCodeAt(at++) / 100 : build(depth + 1));
  return build(0);
}
