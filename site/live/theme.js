/* Light, dark, or as the system has it; kept where the browser allows it, under the name that all pages of the site use. */

export function theme(button) {
  const media = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const set = (name) => {
    if (name === "light" || name === "dark") document.documentElement.dataset.theme = name;
    const dark = (document.documentElement.dataset.theme ?? (media.matches ? "dark" : "light")) === "dark";
    button.textContent = dark ? "Light" : "Dark";
    button.setAttribute("aria-label", `Change to ${dark ? "light" : "dark"} colours`);
    document.dispatchEvent(new Event("recolour"));
  };
  button.addEventListener("click", () => {
    const next = button.textContent.toLowerCase();
    try { localStorage.setItem("theme", next); } catch { /* not kept */ }
    set(next);
  });
  media.addEventListener("change", () => set());
  set(stored());
}
