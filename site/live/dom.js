/* Making elements, in HTML and SVG. */

export const $ = (id) => document.getElementById(id);

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/* html("button", { class: "wide", onclick: f }, "text", another) */
export const html = (name, properties, ...children) => fill(document.createElement(name), properties, children);
export const svg = (name, properties, ...children) => fill(document.createElementNS("http://www.w3.org/2000/svg", name), properties, children);

export const percent = (share) => {
  const value = 100 * share;
  return `${value >= 99.95 || value < 0.05 ? Math.round(value) : value > 99 || value < 1 ? value.toFixed(1) : Math.round(value)} %`;
};

export const plural = (n, one, many = `${one}s`) => `${n} ${n === 1 ? one : many}`;
