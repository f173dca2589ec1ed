// Numbers as people read them. Every function gives a string; "–" stands for no number.

export const NONE = "–";
const known = (value) => typeof value === "number" && Number.isFinite(value);

/** 1234.5 → "1,235"; 12.34 → "12.3"; 1.234 → "1.23": three digits, never exponents. */
export function number(value, digits = 3) {
  if (!known(value)) return NONE;
  const size = Math.abs(value) < 1e-12 ? 0 : Math.floor(Math.log10(Math.abs(value)));
  const places = Math.min(Math.max(digits - 1 - size, 0), 6);
  return value.toLocaleString("en", { minimumFractionDigits: 0, maximumFractionDigits: places });
}

export const fixed = (value, places) => (known(value) ? value.toFixed(places) : NONE);
export const times = (value) => (known(value) ? `${value.toFixed(2)}×` : NONE);
export const percent = (share, places = 0) => (known(share) ? `${(100 * share).toFixed(places)} %` : NONE);

/** Seconds with the unit that suits: µs, ms or s. */
export function seconds(value) {
  if (!known(value)) return NONE;
  if (value !== 0 && Math.abs(value) < 1e-3) return `${number(value * 1e6)} µs`;
  if (Math.abs(value) < 1) return `${number(value * 1e3)} ms`;
  return `${number(value)} s`;
}

export const rate = (value) => (known(value) ? `${number(value)} tok/s` : NONE);

const STEPS = ["B", "kB", "MB", "GB", "TB", "PB"];

/** Bytes with decimal prefixes, as data sheets have them. */
export function bytes(value) {
  if (!known(value)) return NONE;
  const step = value < 1 ? 0 : Math.min(Math.floor(Math.log10(value) / 3), STEPS.length - 1);
  return `${number(value / 1000 ** step)} ${STEPS[step]}`;
}

const COUNTS = ["", "K", "M", "B", "T"];

/** A count as model names have it: 8.03B. */
export function count(value) {
  if (!known(value)) return NONE;
  const step = value < 1000 ? 0 : Math.min(Math.floor(Math.log10(value) / 3), COUNTS.length - 1);
  return `${number(value / 1000 ** step)}${COUNTS[step]}`;
}
