/* A card beside a word: for a pointer that rests on it, for the keyboard's focus, for a touch. Escape closes it. */

const DWELL = 200, GRACE = 250; // milliseconds before a card opens; and closes, so that a pointer can move onto it

/* card: a hidden element; holders: elements with words, of which those with data-card have cards; fill(word): what a card
   says, a list of nodes. Cards of a holder with data-cards="above" open above their words where there is room. */
export function createCards({ card, holders, fill }) {
  let word = null, timer;

  function show(node) {
    hide();
    word = node;
    card.dataset.cards = word.closest("[data-cards]")?.dataset.cards ?? "below";
    word.setAttribute("aria-describedby", card.id);
    card.replaceChildren(...fill(word));
    card.hidden = false;
    place();
  }

  function hide() {
    clearTimeout(timer);
    word?.removeAttribute("aria-describedby");
    word = null;
    card.hidden = true;
  }

  function later(node) {
    clearTimeout(timer);
    timer = setTimeout(() => (node ? node.isConnected && show(node) : hide()), node ? DWELL : GRACE);
  }

  function place() {
    if (!word) return;
    if (!word.isConnected) return hide();
    const { left, top, bottom } = word.getBoundingClientRect(), high = card.offsetHeight, wide = card.offsetWidth, gap = 6;
    const above = top - high - gap, below = bottom + gap;
    const upward = card.dataset.cards === "above" ? above >= 0 : below + high > innerHeight && above >= 0;
    card.style.left = `${Math.max(gap, Math.min(left, document.documentElement.clientWidth - wide - gap))}px`;
    card.style.top = `${upward ? above : below}px`;
  }

  const wordAt = (event) => event.target.closest("[data-card]");
  for (const holder of holders) {
    holder.addEventListener("pointerover", (event) => {
      if (event.pointerType !== "mouse") return;
      if (wordAt(event) && wordAt(event) === word) clearTimeout(timer);
      else later(wordAt(event));
    });
    holder.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") later(null); });
    holder.addEventListener("focusin", (event) => { if (wordAt(event)?.matches(":focus-visible")) show(wordAt(event)); });
    holder.addEventListener("focusout", hide);
    holder.addEventListener("click", (event) => {
      const old = wordAt(event); // a press on a source word writes the words anew
      const node = old?.isConnected ? old : old && holder.querySelector(`[data-card="${old.dataset.card}"]`);
      if (node && (event.pointerType !== "mouse" || holder.dataset.cards !== "above")) show(node);
    });
  }
  card.addEventListener("pointerenter", () => clearTimeout(timer));
  card.addEventListener("pointerleave", () => later(null));
  document.addEventListener("pointerdown", ({ target }) => { if (![card, ...holders].some((one) => one.contains(target))) hide(); });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !word) return;
    event.stopPropagation();
    hide();
  }, true);
  addEventListener("scroll", place, true);
  addEventListener("resize", place);
  return { hide };
}
