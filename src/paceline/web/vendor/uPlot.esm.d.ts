// The types of uPlot.esm.js, from the npm package that it was copied from.
export { default } from "uplot";
