// What the server answers and what the page passes around; for the type checker only, never served.

/** A number that went into a figure, or a field of the request. */
export interface Input {
  name: string;
  value: number;
  unit: string;
  text: string;
  also: string | null;
  given: boolean;
}

/** A number with everything needed to check it. */
export interface Figure {
  name: string;
  value: number;
  unit: string;
  text: string;
  also: string | null;
  group: string;
  formula: string;
  inputs: Input[];
  source: string;
}

export interface Warning {
  about: string;
  message: string;
}

export interface Alternative {
  label: string;
  value: number;
  unit: string;
  text: string;
  also: string | null;
  used: boolean;
}

export interface Reading {
  about: string;
  question: string;
  alternatives: Alternative[];
}

export interface Series {
  name: string;
  x_name: string;
  x_unit: string;
  y_name: string;
  y_unit: string;
  points: [number, number][];
  mark: [number, number] | null;
}

/** The answer of a model. */
export interface Report {
  model: string;
  inputs: Input[];
  figures: Figure[];
  warnings: Warning[];
  readings: Reading[];
  series: Series[];
}

/** Why there is no answer. */
export interface Problem {
  kind: string;
  message: string;
  hint: string | null;
  place: string | null;
}

/** What may be said about a field of a model. */
export interface ModelField {
  name: string;
  kind: string;
  unit: string | null;
  default: string | null;
  choices: string[];
  doc: string;
}

export interface Model {
  name: string;
  summary: string;
  fields: ModelField[];
}

/** A position of a slider. */
export interface Step {
  value: number;
  text: string;
}

/** An input of the page. */
export interface FieldSpec {
  /** Name in the address of the page. */
  id: string;
  /** Part of the scenario it belongs to. */
  model: "checkpoint" | "retention" | "cost";
  /** Its name there; a field of a tier is `tier.field`. */
  name: string;
  label: string;
  /** Said below the label where the planner's own words do not fit. */
  note?: string;
  /** What it says at first; empty for a field that is computed unless given. */
  initial: string;
  /** Whether the planner assumes the same when nothing is said. */
  assumed?: boolean;
  /** Positions of its slider; without them it is a choice. */
  steps?: Step[];
  /** Words to choose from, with what they are called. */
  choices?: [string, string][];
  /** Figure that is used while nothing is given. */
  computed?: string;
}

export interface FieldGroup {
  title: string;
  /** Folded until asked for. */
  folded?: boolean;
  fields: FieldSpec[];
}

/** What every field says, by its id. */
export type State = Record<string, string>;
