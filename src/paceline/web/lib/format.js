// Numbers as people read them. Every function returns a string; "–" stands for no number.

/** @typedef {number | null | undefined} Value */

export const NONE = "–";
const MINUTE = 60; // seconds
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
/** @param {Value} value @returns {value is number} */
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/**
 * 1234.5 → "1,235"; 12.34 → "12.3"; 1.234 → "1.23": three digits, never exponents.
 *
 * @param {Value} value
 * @param {number} digits
 */
export function number(value, digits = 3) {
  if (!isNumber(value)) return NONE;
  const size = Math.abs(value) < 1e-12 ? 0 : Math.floor(Math.log10(Math.abs(value)));
  const places = Math.min(Math.max(digits - 1 - size, 0), 6);
  return value.toLocaleString("en", { minimumFractionDigits: 0, maximumFractionDigits: places });
}

/** @param {Value} value @param {number} places */
export const fixed = (value, places) => (isNumber(value) ? value.toFixed(places) : NONE);

/** @param {Value} value */
export const times = (value) => (isNumber(value) ? `${value.toFixed(2)}×` : NONE);

/** @param {Value} share @param {number} places */
export const percent = (share, places = 0) => (
  isNumber(share) ? `${(100 * share).toFixed(places)} %` : NONE);

/** Seconds with the unit that suits: µs, ms or s. @param {Value} value */
export function seconds(value) {
  if (!isNumber(value)) return NONE;
  if (value !== 0 && Math.abs(value) < 1e-3) return `${number(value * 1e6)} µs`;
  if (Math.abs(value) < 1) return `${number(value * 1e3)} ms`;
  return `${number(value)} s`;
}

/** @param {Value} value */
export const rate = (value) => (isNumber(value) ? `${number(value)} tok/s` : NONE);

/** Bytes with decimal prefixes, as data sheets have them. @param {Value} value */
export const bytes = (value) => withPrefix(value, [" B", " kB", " MB", " GB", " TB", " PB"], 1);

/** A count as model names have it: 8.03B. @param {Value} value */
export const count = (value) => withPrefix(value, ["", "K", "M", "B", "T"], 1000);

/** @param {Value} value @param {string[]} prefixes @param {number} least that gets a prefix */
function withPrefix(value, prefixes, least) {
  if (!isNumber(value)) return NONE;
  const thousands = Math.floor(Math.log10(value) / 3);
  const step = value < least ? 0 : Math.min(thousands, prefixes.length - 1);
  return `${number(value / 1000 ** step)}${prefixes[step]}`;
}

/** Return a span of time in one unit. @param {number} seconds */
export function span(seconds) {
  if (seconds < 2 * MINUTE) return `${number(Math.max(0, Math.round(seconds)), 4)} s`;
  if (seconds < 2 * HOUR) return `${Math.round(seconds / MINUTE)} min`;
  if (seconds < 2 * DAY) return `${Math.round(seconds / HOUR)} h`;
  return `${Math.round(seconds / DAY)} days`;
}
