// Sets the colours that the reader chose on an earlier visit, before the first paint.
try {
  const stored = localStorage.getItem("paceline-theme");
  if (stored === "light" || stored === "dark") document.documentElement.dataset.theme = stored;
} catch {
  // storage is off in this browser: the system's colours then
}
