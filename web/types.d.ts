// What the server answers and what the page passes around; for the type checker only, never served.

/** A number that went into a figure. */
export interface Operand {
  name: string;
  value: number;
  unit: string;
  text: string;
  also: string | null;
}

/** A field of the request, as it was used. */
export interface Input extends Operand {
  origin: "given" | "default" | "found" | "measured";
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
  inputs: Operand[];
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
  /** Part of the scenario it is about. */
  place: string | null;
  /** Field of that part it is about, where it is about one. */
  field: string | null;
}

/** What may be said about a field of a model. */
export interface ModelField {
  name: string;
  kind: string;
  unit: string | null;
  default: string | null;
  choices: string[];
  doc: string;
  /** The default of a list of tables, table by table, as people write it. */
  items: Record<string, string>[];
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

/** Where an input of the page stands and what it is called there. */
export interface FieldLayout {
  /** Name in the address of the page. */
  id: string;
  /** Part of the scenario it belongs to. */
  model: "checkpoint" | "retention" | "cost";
  /** Its name there; a field of a tier is `tier.field`. */
  name: string;
  label: string;
  /** What it is, where the planner's own words do not fit. */
  note?: string;
  /** What it says at first, where that is the page's choice; such a field is needed. */
  initial?: string;
  /** Positions of its slider; without them it is a choice. */
  steps?: Step[];
  /** What the words to choose from are called. */
  labels?: Record<string, string>;
  /** Figure that is used while nothing is given. */
  computed?: string;
}

export interface GroupLayout {
  title: string;
  /** Folded until asked for. */
  folded?: boolean;
  fields: FieldLayout[];
}

/** An input of the page with what the planner says about it. */
export interface FieldSpec extends FieldLayout {
  /** What it says at first; empty for a field that is computed unless given. */
  initial: string;
  /** Whether the planner assumes the same when nothing is said. */
  assumed: boolean;
  /** Whether nothing can be computed without it. */
  needed: boolean;
  /** Words to choose from, with what they are called. */
  choices?: [string, string][];
  /** What it is. */
  doc: string;
}

export interface FieldGroup {
  title: string;
  folded?: boolean;
  fields: FieldSpec[];
}

/** Every input of the page. */
export interface Form {
  groups: FieldGroup[];
  fields: FieldSpec[];
  /** The tiers the planner assumes, as tables. */
  tiers: Record<string, string>[];
}

/** What every field says, by its id. */
export type State = Record<string, string>;
