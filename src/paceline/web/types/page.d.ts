// Types that modules of the page share.

import type { PageState } from "./answers";

// -- elements -------------------------------------------------------------------------------------

/** What an element may contain. null and undefined stand for nothing. */
export type Child = Node | string | null | undefined | readonly Child[];
export type Tag = keyof HTMLElementTagNameMap;
export type Handlers = {
  [Name in keyof HTMLElementEventMap]?: (event: HTMLElementEventMap[Name]) => unknown;
};

interface Attributes {
  class?: string;
  style?: { [Property in keyof CSSStyleDeclaration]?: string };
  dataset?: { [name: string]: string };
  on?: Handlers;
  for?: string;
  role?: string;
  [aria: `aria-${string}`]: string | undefined;
}

/** DOM properties of an element; a text may be given as a number. */
type DomProperties<Element> = {
  [Name in Exclude<keyof Element, keyof Attributes | `aria${string}`>]?:
    | Element[Name]
    | (Element[Name] extends string ? number : never)
    | null;
};

export type Properties<Name extends Tag> = Attributes & DomProperties<HTMLElementTagNameMap[Name]>;

/** A control with its value, as lib/controls.js makes them. */
export interface Control<Value> {
  id: string;
  element: HTMLElement;
  /** What a label is for, where it is not `element`. */
  input?: HTMLElement;
  value: Value;
}

/** [value, text] of the options of a list. */
export type Options = readonly (readonly [value: string, text: string])[];

/** An error, and the field it is about where that is known. */
export type FieldError = Error & { field?: string | null };

// -- tabs -----------------------------------------------------------------------------------------

/** What the frame gives a tab. */
export interface TabContext {
  state: PageState;
  /** Returns the parameters of the hash (#NAME?a=b). */
  params(): URLSearchParams;
  /** Puts parameters into the hash without a new entry in the history. */
  remember(params: URLSearchParams): void;
  /** Goes to another tab. */
  open(name: string, params?: URLSearchParams | null): void;
}

export interface TabModule {
  mount(element: HTMLElement, context: TabContext): Promise<void> | void;
  show?(params: URLSearchParams): void;
  hide?(): void;
}

// -- charts ---------------------------------------------------------------------------------------

export type Range = [low: number, high: number];

export interface Axis {
  label: string;
  /** Base of a logarithmic axis. */
  log?: 2 | 10;
  min?: number;
  max?: number;
  /** The axis reaches at least this far: small values do not fill it. */
  atLeast?: number;
  /** Only whole numbers get a label. */
  whole?: boolean;
  format?: (value: number) => string;
  /** Returns the values that get a label, for an axis that is `width` pixels long. */
  ticks?: (width: number) => number[];
}

export interface Series {
  label: string;
  x: number[];
  y: (number | null)[];
  /** A CSS variable such as "--series-1". */
  colour: string;
  dash?: number[];
  stepped?: boolean;
  /** Circles at the points in place of a line. */
  circles?: boolean;
}

/** A ring with words above it, or below it. */
export interface Mark {
  x: number;
  y: number;
  text: string;
  below: boolean;
  colour: string;
}

/** A measured point; the pointer shows its note. */
export interface Dot {
  x: number;
  y: number;
  note: string;
  colour: string;
}

/** A dashed level, or the line y = slope · x. */
export type Ruler = { y: number; text: string } | { slope: number; text: string };

/** Something that happened at x: an upright line with words. */
export interface Happening {
  x: number;
  text: string;
  /** A CSS variable such as "--good". */
  colour: string;
}

/** Fills the rectangle of one unit around (x, y) with a colour, or hatches it. */
export interface Cell {
  x: number;
  y: number;
  fill: string | null;
  outlined?: boolean;
}

/** What the colours of cells mean: a gradient by shares from 0 to 1; `hatched` may be "". */
export interface Ramp {
  low: string;
  high: string;
  stops: [share: number, colour: string][];
  hatched: string;
}

/** Hatches the chart from one x to another, with words. */
export interface Band {
  from: number;
  to: number;
  text: string;
}

export interface ChartData {
  series: Series[];
  marks?: Mark[];
  dots?: Dot[];
  rulers?: Ruler[];
  cells?: Cell[];
  ramp?: Ramp;
  bands?: Band[];
  happenings?: Happening[];
}
