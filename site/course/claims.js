/* Filters the table of the claims; without this script the table is whole. The address keeps what is chosen.
   On the page of the search: shows the claims that fit. */

function plain(text) {
  return text.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase();
}

/** The words of a search, a plural as its singular: "heads" finds "head". */
function wordsOf(search) {
  return plain(search).split(/\s+/).filter(Boolean).map((word) => word.replace(/(?<=..[^su])s$/, ""));
}

const form = document.getElementById("filters");
if (form) {
  const rows = [...document.querySelectorAll("#claims tbody tr")];
  const texts = new Map(rows.map((row) => [row, plain(row.textContent)]));
  const [find, topic, source] = ["find", "topic", "source"].map((id) => document.getElementById(id));
  const boxes = [...form.querySelectorAll("[name=verdict]")];

  function filter() {
    const words = wordsOf(find.value), verdicts = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
    for (const row of rows) {
      const { verdict, topic: its, source: from } = row.dataset, text = texts.get(row);
      row.hidden = !(verdicts.has(verdict) && (!topic.value || its === topic.value) && (!source.value || from === source.value)
        && words.every((word) => text.includes(word)));
    }
    const many = rows.filter((row) => !row.hidden).length;
    document.getElementById("shown").textContent = `${many} of ${rows.length} claims`;
    document.getElementById("nothing").hidden = many > 0;
    keep(verdicts);
  }

  function keep(verdicts) {
    const told = new URLSearchParams();
    for (const control of [find, topic, source]) if (control.value) told.set(control.id, control.value);
    if (verdicts.size < boxes.length) told.set("verdict", [...verdicts].join(" "));
    const hash = String(told) ? `#${told}` : "";
    if (location.hash.startsWith("#claim-") && !hash) return;
    try { history.replaceState(null, "", hash || location.pathname + location.search); } catch { /* not on disk, in some browsers */ }
  }

  function recall() {
    const told = new URLSearchParams(location.hash.slice(1));
    for (const control of [find, topic, source]) control.value = told.get(control.id) ?? "";
    if (told.has("verdict")) for (const box of boxes) box.checked = told.get("verdict").split(" ").includes(box.value);
  }

  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(filter)); // once the fields are empty
  document.querySelector("#nothing button").addEventListener("click", () => { form.reset(); find.focus(); });
  recall();
  form.hidden = false;
  filter();
}

const found = document.getElementById("claims-found");
if (found) {
  const FIRST = 5;
  const search = new URLSearchParams(location.search).get("q") ?? "", words = wordsOf(search);
  const fitting = words.length === 0 ? [] : [...found.querySelectorAll("li")].filter((claim) => {
    const text = plain(`${claim.textContent} ${claim.dataset.text}`);
    return words.every((word) => text.includes(word));
  });
  for (const claim of fitting.slice(0, FIRST)) claim.hidden = false;
  const all = document.getElementById("claims-all");
  all.href = `claims.html#${new URLSearchParams({ find: search })}`;
  all.textContent = fitting.length > FIRST ? `All ${fitting.length} claims that fit` : "In the table of claims";
  found.hidden = fitting.length === 0;
}
