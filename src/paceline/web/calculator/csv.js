// Everything that is drawn, as one long table.

const HEADER = ["view", "drafter", "tier", "batch", "context", "draft_length", "acceptance_length_incl_bonus", "speedup",
  "tpot_ms", "tokens_per_second_per_request", "tokens_per_second_per_device"];
const TIERS = ["ceiling", "calibrated"];

/** The CSV of an answer of ui/predict, with a header line. */
export function toCsv(answer) {
  const { batch, context } = answer.scenario;
  const rows = [HEADER];
  for (const tier of TIERS) {
    const ar = answer.ar[tier];
    rows.push(["ar", "", tier, batch, context, 0, 1, 1, ar.tpot_ms, ar.tokens_per_second_per_request, ar.tokens_per_second_per_device]);
  }
  for (const drafter of answer.drafters) {
    for (const tier of TIERS) {
      const curve = drafter.curve[tier];
      drafter.curve.draft_length.forEach((length, i) => rows.push(["by_draft_length", drafter.name, tier, batch, context, length,
        drafter.curve.acceptance_length[i], curve.speedup[i], curve.tpot_ms[i], curve.tokens_per_second_per_request[i],
        curve.tokens_per_second_per_device[i]]));
      const best = drafter.by_batch[tier];
      drafter.by_batch.batch.forEach((size, i) => rows.push(["optimum_by_batch", drafter.name, tier, size, context,
        best.draft_length[i], best.acceptance_length[i], best.speedup[i], best.tpot_ms[i],
        best.tokens_per_second_per_request[i], best.tokens_per_second_per_device[i]]));
    }
  }
  return `${rows.map((row) => row.map(cell).join(",")).join("\n")}\n`;
}

function cell(value) {
  if (value === null || value === undefined) return "";
  let text = String(value);
  // a name that starts like a formula would be computed by a spreadsheet
  if (typeof value === "string" && /^[=+\-@]/.test(text)) text = `'${text}`;
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
