// Before the first paint: the colours that the reader chose on an earlier visit, else the system's.
const KNOWN = ["light", "dark"];
let stored = null;
try {
  stored = localStorage.getItem("paceline-theme");
} catch {
  // storage is off in this browser: the system's colours then
}
if (KNOWN.includes(stored)) document.documentElement.dataset.theme = stored;
