// The plan of a job as a graph: the steps as they were written, or the parts that Spark runs, with what they measure.
import dagre from "@dagrejs/dagre";
import { useMemo, useRef, useState } from "preact/hooks";
import { useLive } from "../api";
import { count, moment, Problem, Sheet, span } from "../shown";
import type { Process } from "./job";

export interface Step {
  name: string;
  does: string;
  kind: string;
  inputs: string[];
  columns?: string[];
  line?: string | null;
  windowed?: boolean;
  runs?: string;
  steps?: string[];
  /** The kind of process that runs it. */
  process?: string;
  /** The physical parts that run it. */
  stages?: string[];
}

export interface Plan {
  flow: string;
  /** Unless it runs in micro-batches. */
  mode?: string;
  key_groups: number;
  /** In real time: one for each partition of a source. */
  tasks?: number;
  logical: Step[];
  physical: Step[];
}

export interface StepSample {
  rows_in: number | null;
  rows_out: number | null;
  rows_late: number;
  rows_dead: number;
  rows_dropped: number;
  rows_per_s: number | null;
  watermark: number | null;
  delay_s: number | null;
  delay_own_s: number | null;
  lag_records: number | null;
  lag_s: number | null;
  state_rows: number | null;
}

interface Sample {
  at: number;
  batch_s: number;
  steps: Record<string, StepSample>;
  wait_s: number;
  plan_s: number;
  process_s: number;
  write_s: number;
  other_s: number;
}

interface Metrics {
  samples: Sample[];
}

const WIDTH = 230;
const LINE = 17;
const HEIGHT = 100;
const HEIGHT_PHYSICAL = HEIGHT + LINE;

export function PlanPage({ name, processes }: { name: string; processes: Process[] }) {
  const path = `/v1/jobs/${encodeURIComponent(name)}`;
  const { answer, failure } = useLive<Plan>(`${path}/plan`);
  const metrics = useLive<Metrics>(`${path}/metrics`).answer;
  const [chosen, choose] = useState<string | null>(null);
  const newest = metrics?.samples.at(-1);
  const before = useBefore(newest);
  const steps = newest?.steps ?? {};
  const passed = (step: string, part: "rows_in" | "rows_out"): string | null => {
    const [now, earlier] = [steps[step]?.[part], before?.steps[step]?.[part]];
    if (now === null || now === undefined) return null;
    if (!newest || !before || earlier === null || earlier === undefined || now < earlier) return `${count(now)} rows`;
    return `${count(Math.round((now - earlier) / Math.max(newest.at - before.at, 0.001)))} rows/s`;
  };
  /** What passes an edge: what the step behind it gets, if it has no other input; else what the one before it sends. */
  const sent = (from: Step | undefined, to: Step | undefined): string | null => {
    const found = to?.inputs.length === 1 ? passed(to.steps?.[0] ?? to.name, "rows_in") : null;
    if (found !== null || !from || (to?.kind === "sink" && to.inputs.length > 1)) return found;
    return passed(from.steps?.at(-1) ?? from.name, "rows_out");
  };
  if (!answer) return <Problem failure={failure} />;
  const isRealTime = answer.mode === REAL_TIME;
  const physical = isRealTime ? `in ${answer.tasks} tasks that do not end` : `${answer.key_groups} key groups`;
  const step = answer.logical.find((each) => each.name === chosen) ?? answer.physical.find((each) => each.name === chosen);
  const part = answer.physical.find((each) => each.name === chosen); // a source and its tasks have the same name
  const isChosen = (each: Step) => each.name === chosen || (step?.stages ?? []).includes(each.name);
  const given = { samples: steps, sent, isChosen, choose, processes };
  return (
    <>
      {isRealTime ? <RealTime newest={newest} /> : newest && <Phases of={newest} />}
      <Processes of={processes} />
      <Legend slowest={slowestOf(steps)} />
      <div class="graphs">
        <Graph title="Logical: as it was written" steps={answer.logical} {...given} />
        <Graph title={`Physical: as Spark runs it, ${physical}`} steps={answer.physical} {...given} />
      </div>
      {step && (
        <section class="card" aria-live="polite">
          <h2>{step.name}</h2>
          <p>{step.does}</p>
          {step.line && <p class="faint">{step.line}</p>}
          {step.columns && <p class="faint">Columns: {step.columns.join(", ")}</p>}
          {part?.runs && <p>Runs as {part.runs}</p>}
          {step.stages && <p>Runs in {step.stages.join(", ")}</p>}
          {step.process && <p class="faint">Process: {runsIn(step, processes)}</p>}
          {step.windowed && (
            <a href={`#/jobs/${encodeURIComponent(name)}/plane/${encodeURIComponent(step.name)}`}>Its time plane</a>
          )}
        </section>
      )}
      <h2>Steps</h2>
      <Sheet label="Steps" head={["Step", "Does", "Rows in", "Rows out", "Rows/s", "Lag", "Watermark", "Behind the clock", "Own delay", "State rows", "Late", "Dead", "Dropped"]}>
        {answer.logical.map((each) => {
          const sample = steps[each.name];
          return (
            <tr key={each.name}>
              <th scope="row">{each.name}</th>
              <td>{each.does}</td>
              <td class="number">{count(sample?.rows_in)}</td>
              <td class="number">{count(sample?.rows_out)}</td>
              <td class="number">{rate(sample)}</td>
              <td class="number">{count(sample?.lag_records)}</td>
              <td>{moment(sample?.watermark)}</td>
              <td class="number">{seconds(sample?.delay_s)}</td>
              <td class="number">{seconds(sample?.delay_own_s)}</td>
              <td class="number">{count(sample?.state_rows)}</td>
              <td class="number">{count(sample?.rows_late)}</td>
              <td class="number">{count(sample?.rows_dead)}</td>
              <td class="number">{count(sample?.rows_dropped)}</td>
            </tr>
          );
        })}
      </Sheet>
    </>
  );
}

/** The sample that was the newest before this one: counters of both make a rate. */
function useBefore(newest: Sample | undefined): Sample | undefined {
  const seen = useRef<{ before?: Sample; newest?: Sample }>({});
  if (newest && newest.at !== seen.current.newest?.at) {
    seen.current = { newest, ...(seen.current.newest && { before: seen.current.newest }) };
  }
  return seen.current.before;
}

export const seconds = (value: number | null | undefined): string =>
  value === null || value === undefined ? "–" : span(Math.max(0, value));
export const rate = (sample: StepSample | undefined): string =>
  sample?.rows_per_s === null || sample?.rows_per_s === undefined ? "–" : count(Math.round(sample.rows_per_s));

/** The processes that run the tasks. */
function Processes({ of }: { of: Process[] }) {
  if (of.length === 0) return null;
  const kinds = [...new Set(of.map((each) => each.kind))];
  return (
    <p class="faint">
      Processes: {kinds.map((kind) => `${kind} ${of.filter((each) => each.kind === kind).map((each) => each.pid).join(", ")}`).join(" · ")}
    </p>
  );
}

export const REAL_TIME = "real time";

/** There are no batches whose time could be divided. */
function RealTime({ newest }: { newest: Sample | undefined }) {
  return (
    <p class="card" role="note" aria-label="Real time">
      In real time: each record passes all steps by itself, and is written within milliseconds. Spark counts rows and records
      its progress every few seconds; that is how old these figures are
      {newest && newest.batch_s > 0 ? `, the last time after ${span(newest.batch_s)}` : ""}. The lag is what was written to the
      sources since.
    </p>
  );
}

const PHASES = ["wait", "plan", "process", "write", "other"] as const;

/** How the time of the last batch was spent. */
function Phases({ of }: { of: Sample }) {
  const all = PHASES.map((phase) => [phase, of[`${phase}_s`]] as const);
  const total = all.reduce((sum, [, value]) => sum + value, 0) || 1;
  return (
    <div class="phases" role="img" aria-label={`The last batch: ${all.map(([phase, value]) => `${phase} ${span(value)}`).join(", ")}`}>
      {all.map(([phase, value]) => (
        <div key={phase} class={`phase ${phase}`} style={{ flexGrow: value / total }} title={`${phase}: ${span(value)}`}>
          {value / total > 0.12 ? `${phase} ${span(value)}` : ""}
        </div>
      ))}
    </div>
  );
}

interface Placed {
  nodes: { step: Step; x: number; y: number }[];
  edges: { from: string; to: string; points: { x: number; y: number }[] }[];
  width: number;
  height: number;
}

const heightOf = (step: Step): number => (step.runs ? HEIGHT_PHYSICAL : HEIGHT);

function placed(steps: Step[]): Placed {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: "TB", nodesep: 24, ranksep: 46, marginx: 8, marginy: 8 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const step of steps) graph.setNode(step.name, { width: WIDTH, height: heightOf(step) });
  for (const step of steps) for (const input of step.inputs) graph.setEdge(input, step.name);
  dagre.layout(graph);
  const size = graph.graph();
  return {
    nodes: steps.map((step) => {
      const at = graph.node(step.name) as { x: number; y: number };
      return { step, x: at.x - WIDTH / 2, y: at.y - heightOf(step) / 2 };
    }),
    edges: graph.edges().map((edge) => ({
      from: edge.v,
      to: edge.w,
      points: (graph.edge(edge) as { points: { x: number; y: number }[] }).points,
    })),
    width: size.width ?? 0,
    height: size.height ?? 0,
  };
}

interface GraphGiven {
  title: string;
  steps: Step[];
  samples: Record<string, StepSample>;
  sent: (from: Step | undefined, to: Step | undefined) => string | null;
  isChosen: (step: Step) => boolean;
  choose: (name: string) => void;
  processes: Process[];
}

/** Of a stage, what its steps measure: it reads what the first one gets, and adds the delays and the state of all. */
function sampleOf(step: Step, samples: Record<string, StepSample>): StepSample | undefined {
  const found = (step.steps ?? [step.name]).map((name) => samples[name]).filter((each) => each !== undefined);
  const [first, last] = [found[0], found.at(-1)];
  if (!first || !last || found.length === 1) return first;
  const sum = (part: (sample: StepSample) => number | null) => found.reduce((total, each) => total + (part(each) ?? 0), 0);
  return { ...last, rows_per_s: first.rows_per_s, watermark: last.watermark ?? first.watermark, state_rows: sum((each) => each.state_rows), delay_own_s: sum((each) => each.delay_own_s) };
}

/** The largest delay that a step adds. */
const slowestOf = (samples: Record<string, StepSample>): number =>
  Math.max(0, ...Object.values(samples).map((each) => each.delay_own_s ?? 0));

const KINDS: [kind: string, label: string][] = [
  ["source", "source"],
  ["step", "row by row"],
  ["state", "keeps state"],
  ["side", "side output"],
  ["sink", "output"],
];

/** What the colours of the boxes mean. */
function Legend({ slowest }: { slowest: number }) {
  return (
    <p class="legend" role="note" aria-label="Colours">
      {KINDS.map(([kind, label]) => (
        <span key={kind}>
          <span class={`box kind-${kind}`} /> {label}{" "}
        </span>
      ))}
      <span>
        <span class="heat-scale" /> no delay of its own to the largest{slowest > 0 && `, ${span(slowest)}`}
      </span>
    </p>
  );
}

const PROCESS_NAMES: Record<string, string> = { driver: "the driver", worker: "Python workers", jvm: "the JVM" };
const PIDS_SHOWN = 3;

/** The processes that may run a step: a task runs in any of the workers. */
function runsIn(step: Step, processes: Process[]): string {
  const kind = step.process ?? "";
  const pids = processes.filter((each) => each.kind === kind).map((each) => each.pid);
  if (pids.length === 0) return PROCESS_NAMES[kind] ?? kind;
  return `${kind} ${pids.slice(0, PIDS_SHOWN).join(", ")}${pids.length > PIDS_SHOWN ? `, ${pids.length - PIDS_SHOWN} more` : ""}`;
}

function Graph({ title, steps, samples, sent, isChosen, choose, processes }: GraphGiven) {
  const drawn = useMemo(() => placed(steps), [steps]);
  const slowest = slowestOf(samples);
  const named = (name: string): Step | undefined => steps.find((each) => each.name === name);
  return (
    <figure class="graph">
      <figcaption>{title}</figcaption>
      <div class="scroll" tabIndex={0} role="region" aria-label={title}>
        <svg width={drawn.width} height={drawn.height} viewBox={`0 0 ${drawn.width} ${drawn.height}`}>
          {drawn.edges.map((edge) => (
            <g key={`${edge.from} ${edge.to}`}>
              <path class="edge" d={`M${edge.points.map((at) => `${at.x},${at.y}`).join("L")}`} />
              <Flow at={edge.points[Math.floor(edge.points.length / 2)]} rows={sent(named(edge.from), named(edge.to))} />
            </g>
          ))}
          {drawn.nodes.map(({ step, x, y }) => {
            const sample = sampleOf(step, samples);
            const own = slowest > 0 ? (sample?.delay_own_s ?? 0) / slowest : 0;
            return (
              <g
                key={step.name}
                class={`node kind-${step.kind} ${isChosen(step) ? "chosen" : ""}`}
                transform={`translate(${x} ${y})`}
                role="button"
                tabindex={0} // as an attribute of SVG is spelled
                onClick={() => choose(step.name)}
                onKeyDown={(event) => {
                  if (event.key !== "Enter" && event.key !== " ") return;
                  event.preventDefault(); // the space bar would scroll
                  choose(step.name);
                }}
              >
                <rect width={WIDTH} height={heightOf(step)} rx="8" />
                <rect class="heat" width={WIDTH} height={heightOf(step)} rx="8" style={{ fillOpacity: String(own * 0.45) }} />
                <text class="name" x="12" y="22">
                  {cut(step.name, 27)}
                </text>
                <text x="12" y="41">
                  {cut(step.does, 31)}
                </text>
                {lines(step, sample, processes).map((each, number) => (
                  <text key={number} x="12" y={58 + LINE * number}>
                    {cut(each, 33)}
                  </text>
                ))}
              </g>
            );
          })}
        </svg>
      </div>
    </figure>
  );
}

function Flow({ at, rows }: { at: { x: number; y: number } | undefined; rows: string | null }) {
  if (!at || rows === null) return null;
  return (
    <text class="flow" x={at.x + 6} y={at.y + 4}>
      {rows}
    </text>
  );
}

/** What a step measures, how far it has come, and where it runs. */
function lines(step: Step, sample: StepSample | undefined, processes: Process[]): string[] {
  const reached = sample?.watermark;
  return [
    numbers(step, sample),
    ...(reached === null || reached === undefined ? [] : [`watermark ${moment(reached)}`]),
    ...(step.process ? [`in ${runsIn(step, processes)}`] : []),
    ...(step.runs ? [step.runs] : []),
  ];
}

function numbers(step: Step, sample: StepSample | undefined): string {
  if (!sample) return step.kind;
  const parts = [];
  if (sample.rows_per_s !== null) parts.push(`${rate(sample)} rows/s`);
  if (sample.lag_records !== null) parts.push(`lag ${count(sample.lag_records)}`);
  else if (sample.delay_s !== null) parts.push(`${seconds(sample.delay_s)} behind`);
  if (sample.rows_dropped) parts.push(`dropped ${count(sample.rows_dropped)}`);
  if (sample.state_rows) parts.push(`holds ${count(sample.state_rows)}`);
  return parts.join(" · ") || step.kind;
}

const cut = (whole: string, length: number): string => (whole.length <= length ? whole : `${whole.slice(0, length - 1)}…`);
