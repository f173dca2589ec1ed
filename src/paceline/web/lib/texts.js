// Texts to play, cut into pieces about as long as a tokenizer's. The timing shows how many tokens
// appear, and when; it need not know which tokens they are.

/** @type {{ [name: string]: { name: string, text: string } }} */
export const TEXTS = {
  answer: {
    name: "An answer",
    text:
      "A paceline is a line of riders who take turns at the front. The rider in front does the "
      + "hard work against the wind; those behind sit in the draft and save about a third of "
      + "their effort. When the front rider tires, they swing off, drift back, and join the end "
      + "of the line.\n\n"
      + "Speculative decoding works in much the same way. A small model, the drafter, runs ahead "
      + "and proposes the next few tokens. The large model then checks all of them in a single "
      + "forward pass. While it reads its weights from memory anyway, looking at eight tokens "
      + "costs it hardly more than looking at one.\n\n"
      + "Every token that the large model would have chosen itself is kept; the first one that it "
      + "would not have chosen is replaced by its own, and the rest of the draft is thrown away. "
      + "So each pass yields at least one token and, on a good day, the whole draft and one more. "
      + "The text is the same, token for token. It only arrives sooner, and in bursts.\n",
  },
  code: {
    name: "Code",
    text: `def merge_intervals(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The union of closed intervals, in order, with none that touch.

    >>> merge_intervals([(8, 10), (1, 3), (2, 6)])
    [(1, 6), (8, 10)]
    """
    merged: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if start > end:
            raise ValueError(f"interval ({start}, {end}) ends before it starts")
        if merged and start <= merged[-1][1]:
            before, until = merged.pop()
            merged.append((before, max(until, end)))
        else:
            merged.append((start, end))
    return merged


def free_time(busy: list[tuple[int, int]], day: tuple[int, int]) -> list[tuple[int, int]]:
    """The gaps between appointments, within the day."""
    gaps, cursor = [], day[0]
    for start, end in merge_intervals(busy):
        if start > cursor:
            gaps.append((cursor, min(start, day[1])))
        cursor = max(cursor, end)
    if cursor < day[1]:
        gaps.append((cursor, day[1]))
    return gaps

`,
  },
  json: {
    name: "JSON for an app",
    text: `{
  "customer": {"id": 48213, "language": "de", "plan": "family"},
  "intent": "move_house",
  "summary": "The customer moves on 1 March and wants to take the contract along.",
  "actions": [
    {"type": "check_availability",
     "address": {"street": "Lindenweg 12", "city": "Freiburg", "postcode": "79104"}},
    {"type": "book_technician", "date": "2026-03-02", "slot": "08:00-12:00"},
    {"type": "send_confirmation", "channel": "email"}
  ],
  "confidence": 0.94,
  "needs_human": false
}
`,
  },
};

const PIECE = /\n+ *|\s?\p{L}{1,8}|\s?\p{N}{1,3}|\s?[^\s\p{L}\p{N}]{1,4}|\s+/gu;

/**
 * Return `count` pieces of `text`, which starts over where it ends.
 *
 * @param {string} text
 * @param {number} count
 */
export function pieces(text, count) {
  const cut = text.match(PIECE) ?? ["·"];
  return Array.from({ length: count }, (_, index) => cut[index % cut.length]);
}
