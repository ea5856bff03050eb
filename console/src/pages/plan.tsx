// The plan of a job as a graph: the steps as they were written, or the parts that Spark runs, with what they measure.
import dagre from "@dagrejs/dagre";
import { useMemo, useState } from "preact/hooks";
import { useLive } from "../api";
import { count, Problem, Sheet, span } from "../shown";

interface Step {
  name: string;
  does: string;
  kind: string;
  inputs: string[];
  columns?: string[];
  line?: string | null;
  windowed?: boolean;
}

interface Plan {
  flow: string;
  key_groups: number;
  logical: Step[];
  physical: Step[];
}

export interface StepSample {
  rows_in: number | null;
  rows_out: number | null;
  rows_late: number;
  rows_dead: number;
  rows_per_s: number | null;
  watermark: number | null;
  delay_s: number | null;
  delay_own_s: number | null;
  lag_records: number | null;
  state_rows: number | null;
}

interface Metrics {
  samples: { steps: Record<string, StepSample>; wait_s: number; plan_s: number; process_s: number; write_s: number; other_s: number }[];
}

const WIDTH = 230;
const HEIGHT = 82;

export function PlanPage({ name }: { name: string }) {
  const path = `/v1/jobs/${encodeURIComponent(name)}`;
  const { answer, failure } = useLive<Plan>(`${path}/plan`);
  const metrics = useLive<Metrics>(`${path}/metrics`).answer;
  const [chosen, choose] = useState<string | null>(null);
  const newest = metrics?.samples.at(-1);
  const steps = newest?.steps ?? {};
  if (!answer) return <Problem failure={failure} />;
  const step = answer.logical.find((each) => each.name === chosen);
  return (
    <>
      {newest && <Phases of={newest} />}
      <div class="graphs">
        <Graph title="Logical: as it was written" steps={answer.logical} samples={steps} chosen={chosen} choose={choose} />
        <Graph title={`Physical: as Spark runs it, ${answer.key_groups} key groups`} steps={answer.physical} samples={steps} chosen={chosen} choose={choose} />
      </div>
      {step && (
        <section class="card" aria-live="polite">
          <h2>{step.name}</h2>
          <p>{step.does}</p>
          {step.line && <p class="faint">{step.line}</p>}
          <p class="faint">Columns: {step.columns?.join(", ")}</p>
          {step.windowed && (
            <a href={`#/jobs/${encodeURIComponent(name)}/plane/${encodeURIComponent(step.name)}`}>Its time plane</a>
          )}
        </section>
      )}
      <h2>Steps</h2>
      <Sheet label="Steps" head={["Step", "Does", "Rows in", "Rows out", "Rows/s", "Lag", "Behind the clock", "Own delay", "State rows", "Late", "Dead"]}>
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
              <td class="number">{seconds(sample?.delay_s)}</td>
              <td class="number">{seconds(sample?.delay_own_s)}</td>
              <td class="number">{count(sample?.state_rows)}</td>
              <td class="number">{count(sample?.rows_late)}</td>
              <td class="number">{count(sample?.rows_dead)}</td>
            </tr>
          );
        })}
      </Sheet>
    </>
  );
}

const seconds = (value: number | null | undefined): string =>
  value === null || value === undefined ? "–" : span(Math.max(0, value));
const rate = (sample: StepSample | undefined): string =>
  sample?.rows_per_s === null || sample?.rows_per_s === undefined ? "–" : count(Math.round(sample.rows_per_s));

const PHASES = ["wait", "plan", "process", "write", "other"] as const;

/** How the time of the last batch was spent. */
function Phases({ of }: { of: Metrics["samples"][number] }) {
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

function placed(steps: Step[]): Placed {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: "TB", nodesep: 24, ranksep: 46, marginx: 8, marginy: 8 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const step of steps) graph.setNode(step.name, { width: WIDTH, height: HEIGHT });
  for (const step of steps) for (const input of step.inputs) graph.setEdge(input, step.name);
  dagre.layout(graph);
  const size = graph.graph();
  return {
    nodes: steps.map((step) => {
      const at = graph.node(step.name) as { x: number; y: number };
      return { step, x: at.x - WIDTH / 2, y: at.y - HEIGHT / 2 };
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
  chosen: string | null;
  choose: (name: string) => void;
}

function Graph({ title, steps, samples, chosen, choose }: GraphGiven) {
  const drawn = useMemo(() => placed(steps), [steps]);
  const slowest = Math.max(0, ...Object.values(samples).map((each) => each.delay_own_s ?? 0));
  return (
    <figure class="graph">
      <figcaption>{title}</figcaption>
      <div class="scroll" tabIndex={0} role="region" aria-label={title}>
        <svg width={drawn.width} height={drawn.height} viewBox={`0 0 ${drawn.width} ${drawn.height}`}>
          {drawn.edges.map((edge) => (
            <g key={`${edge.from} ${edge.to}`}>
              <path class="edge" d={`M${edge.points.map((at) => `${at.x},${at.y}`).join("L")}`} />
              <Flow at={edge.points[Math.floor(edge.points.length / 2)]} sample={samples[edge.from]} />
            </g>
          ))}
          {drawn.nodes.map(({ step, x, y }) => {
            const sample = samples[step.name];
            const own = slowest > 0 ? (sample?.delay_own_s ?? 0) / slowest : 0;
            return (
              <g
                key={step.name}
                class={`node kind-${step.kind} ${chosen === step.name ? "chosen" : ""}`}
                transform={`translate(${x} ${y})`}
                role="button"
                tabIndex={0}
                onClick={() => choose(step.name)}
                onKeyDown={(event) => (event.key === "Enter" || event.key === " ") && choose(step.name)}
              >
                <rect width={WIDTH} height={HEIGHT} rx="8" />
                <rect class="heat" width={WIDTH} height={HEIGHT} rx="8" style={{ fillOpacity: String(own * 0.45) }} />
                <text class="name" x="12" y="22">
                  {cut(step.name, 27)}
                </text>
                <text x="12" y="41">
                  {cut(step.does, 31)}
                </text>
                <text class="numbers" x="12" y="61">
                  {cut(numbers(step, sample), 32)}
                </text>
              </g>
            );
          })}
        </svg>
      </div>
    </figure>
  );
}

function Flow({ at, sample }: { at: { x: number; y: number } | undefined; sample: StepSample | undefined }) {
  if (!at || sample?.rows_out === null || sample?.rows_out === undefined) return null;
  return (
    <text class="flow" x={at.x + 6} y={at.y + 4}>
      {count(sample.rows_out)} rows
    </text>
  );
}

function numbers(step: Step, sample: StepSample | undefined): string {
  if (!sample) return step.kind;
  const parts = [];
  if (sample.rows_per_s !== null) parts.push(`${rate(sample)} rows/s`);
  if (sample.lag_records !== null) parts.push(`lag ${count(sample.lag_records)}`);
  else if (sample.delay_s !== null) parts.push(`${seconds(sample.delay_s)} behind`);
  if (sample.state_rows) parts.push(`holds ${count(sample.state_rows)}`);
  return parts.join(" · ") || step.kind;
}

const cut = (whole: string, length: number): string => (whole.length <= length ? whole : `${whole.slice(0, length - 1)}…`);
