// Two panes play tokens at real pace: plain decoding beside speculation.

export function mount(element) {
  element.textContent = "The timing comes with the next commit.";
}
