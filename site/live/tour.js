/* The guided tour: six steps, each with something to do that the page checks. Heads, words and sentences come from
   course.js, where they were chosen by the table of roles, so that a step fits whichever model ships. */

import { percent, plural } from "./dom.js";

/* page: what the steps ask of the page (see app.js). Each step: title, text, begin(), check() -> null until done, then
   what to say; show() does it for the reader; wrong() may comment on a press that was not it. */
export function createSteps({ tour, roles, sentences, rolesOfHeads }, page) {
  const { neighbour, relation, name, half, referent } = tour;
  const quiet = rolesOfHeads.findIndex((of, head) => page.kind(head) === "encoder" && (!of.length || roles[of[0]].quiet));
  const words = (step) => sentences[step.sentence].source.split(" ");
  const has = (head, role) => rolesOfHeads[head].includes(role);
  const lower = (text) => text[0].toLowerCase() + text.slice(1);
  const sees = (head) => (rolesOfHeads[head].length ? lower(roles[rolesOfHeads[head][0]].text) : "no role of its own is known");
  const missing = (step) => page.mistakes().filter(({ missed }) => missed.some((one) => step.needs.includes(one))).length;
  const start = (step, press) => {
    page.allOn();
    page.choose(step.sentence);
    page.press(press);
    page.look(quiet);
    page.view("arcs");
  };

  const find = (step, title, text, found) => ({
    title, text, target: "heads", hideRoles: true,
    begin: () => start(step, "look"),
    check: () => (page.pressed() !== null && has(page.pressed(), step.role) ? `Yes, ${page.name(page.pressed())}. ${found(page.pressed())}` : null),
    wrong: () => (page.pressed() === null ? null : `${page.name(page.pressed())}: ${sees(page.pressed())}. Try another one.`),
    show: () => page.pressHead(step.heads[0]),
  });

  const count = (n) => ["No", "One", "Two", "Three", "Four", "Five", "Six"][n] ?? String(n);
  const pair = (step) => step.words.map((at) => words(step)[at]);
  const offNow = (heads) => heads.filter((head) => page.isOff(head)).length;

  return [
    find(neighbour, "Find a head by its map",
      `Some heads have one plain habit. One head of the encoder has this one: ${lower(roles[neighbour.role].text)}. So its map is one clean diagonal. Find it and press it.`,
      (head) => `Row by row the dark square moves one column on: ${lower(roles[neighbour.role].text)}.`),
    {
      title: "Switch it off", target: "heads",
      text: `An accent in the source must be heard in the translation of its neighbour. What becomes of that without ${page.name(neighbour.heads[0])}? Switch this head off and read the translation.`,
      begin: () => { start(neighbour, "switch"); page.look(neighbour.heads[0]); },
      check: () => {
        if (!page.isOff(neighbour.heads[0]) || !missing(neighbour)) return null;
        return `${plural(missing(neighbour), "word is", "words are")} wrong: the ${neighbour.needs[0]} is missing.${page.mistakes().length === missing(neighbour) ? " All other words stay right: the head did one thing." : ""}`;
      },
      show: () => page.switchOff([neighbour.heads[0]]),
    },
    find(relation, "Find the head that reads a relation",
      `“${pair(relation)[0]}” and “${pair(relation)[1]}” stand apart, but the translation of the first depends on the second. Find an encoder head with this role: ${lower(roles[relation.role].text)}.`,
      () => `“${pair(relation)[0]}” attends to “${pair(relation)[1]}”, however many words lie between them.`),
    {
      title: name.heads.length === 1 ? "One head, one fact" : `${count(name.heads.length)} heads, one fact`, target: "heads",
      text: `One name decides the topic of the whole sentence, and small words must show it. ${count(name.heads.length)} ${name.heads.length === 1 ? "head" : "heads"} of the encoder ${name.heads.length === 1 ? "attends" : "attend"} to the name: ${name.heads.map(page.name).join(" and ")}. Switch ${name.heads.length === 1 ? "it" : "one off, read the translation, then switch off the rest"}.`,
      begin: () => { start(name, "switch"); page.look(name.heads[0]); },
      check: () => {
        if (offNow(name.heads) < name.heads.length || !missing(name)) return null;
        return `${plural(missing(name), "word has", "words have")} lost the topic. Heads that do the same work can stand in for each other, so the cost of one alone says little.`;
      },
      wrong: () => (offNow(name.heads) && offNow(name.heads) < name.heads.length ? `One is off: ${plural(missing(name), "word has", "words have")} lost the topic. Now the others.` : null),
      show: () => page.switchOff(name.heads),
    },
    {
      title: "How few are enough?", target: "many",
      text: `Half of the encoder's heads are off, chosen at random. Choose a better ranking, and keep at most ${half.keep} with every word of this sentence right.`,
      begin: () => { start(half, "switch"); page.keep("encoder", "random", half.keep); },
      check: () => {
        const { scope, kept } = page.kept();
        if (scope !== "encoder" || kept === null || kept > half.keep || page.mistakes().length) return null;
        return `${kept} encoder heads, and every word is right. Which heads stay matters more than how many; try how far down you can go.`;
      },
      show: () => page.keep("encoder", half.ranking, half.keep),
    },
    {
      title: "Open a head", target: "look",
      text: `${roles[referent.role].text}: ${page.name(referent.heads[0])} does that. Open it (Inside) and take it apart for the word “${pair(referent)[0]}”, number ${referent.words[0] + 1}: which key has the highest score?`,
      begin: () => { start(referent, "look"); page.look(referent.heads[0]); },
      check: () => {
        const { head, view, query, weights } = page.looking();
        if (!has(head, referent.role) || view !== "inside" || query !== referent.words[0]) return null;
        return `“${pair(referent)[1]}” gets ${percent(weights[referent.words[1]])} of the softmax; its value goes through the output matrix and is added to “${pair(referent)[0]}”. That is all a head does.`;
      },
      show: () => { page.look(referent.heads[0]); page.view("inside", referent.words[0]); },
    },
  ];
}
