/* What one press switches off: the heads of a role, in a sentence that shows it, or some heads at random. */

/* off(heads, sentence): switches on all heads but these; without a sentence, the one that is there stays.
   Gives a deed for each data-do of the buttons that live_stills.presets makes; a deed takes the button's dataset. */
export const createPresets = ({ course, total, off }) => ({
  without({ step }) {
    const { heads, sentence } = course.tour[step];
    off(heads, sentence);
  },
  random({ many }) {
    const heads = Array.from({ length: total }, (_, head) => head);
    for (let i = 0; i < many; i++) { // the beginning of a shuffle
      const j = i + Math.floor(Math.random() * (total - i));
      [heads[i], heads[j]] = [heads[j], heads[i]];
    }
    off(heads.slice(0, many));
  },
});
