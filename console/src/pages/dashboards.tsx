// Dashboards: panels over the newest records of topics, live.
import { useMemo, useState } from "preact/hooks";
import { type Failure, useAnswer, useLive } from "../api";
import { count, Problem, Sheet, text } from "../shown";
import type { Written } from "./changes";
import { PlanePage } from "./plane";
import { Names } from "./topics";

interface Panel {
  kind: "line" | "bar" | "heat" | "number" | "table" | "search" | "plane";
  title: string;
  topic: string | null;
  x: string | null;
  y: string | null;
  by: string | null;
  columns: string[];
  rows: number;
  step: string | null;
}

interface Found {
  records: { key: string | null; value: unknown; timestamp: string; partition: number; offset: number }[];
  scanned: number;
}

type Row = Record<string, unknown>;

export function Dashboards() {
  const { answer, failure } = useAnswer<string[]>("/v1/dashboards");
  return (
    <Names title="Dashboards" names={answer} failure={failure} to={(name) => `#/dashboards/${encodeURIComponent(name)}`} />
  );
}

export function Dashboard({ name }: { name: string }) {
  const { answer, failure } = useAnswer<{ panels: Panel[]; job: string }>(`/v1/dashboards/${encodeURIComponent(name)}`);
  return (
    <>
      <p class="crumbs">
        <a href="#/dashboards">Dashboards</a>
      </p>
      <h1>{name}</h1>
      <Problem failure={failure} />
      <div class="panels">
        {answer?.panels.map((panel) => (
          <section key={panel.title} class={`card panel ${panel.kind}-panel`}>
            <h2>{panel.title}</h2>
            {panel.kind === "plane" ? (
              <PlanePage name={answer.job} step={panel.step ?? undefined} />
            ) : panel.kind === "search" ? (
              <SearchPanel panel={panel} />
            ) : (
              <LivePanel panel={panel} />
            )}
          </section>
        ))}
      </div>
    </>
  );
}

interface Shown {
  rows: Row[];
  failure: Failure | null;
  /** How many records were read for it; null before there is an answer. */
  scanned: number | null;
}

/** The newest rows of a topic, or of a table in a database, the newest first. What a retraction takes back is replaced by a
 *  newer row. Of a table each key has its newest row, and none once it is deleted; a line shows all. */
function useRows(panel: Panel, search = ""): Shown {
  const name = encodeURIComponent(panel.topic!);
  const tables = useLive<{ name: string; topic: string | null }[]>("/v1/tables");
  const isWritten = tables.answer?.some((each) => each.name === panel.topic && each.topic === null) ?? false;
  const topic = useLive<{ compaction: boolean }>(isWritten ? null : `/v1/topics/${name}`).answer;
  const path = isWritten ? `/v1/tables/${name}/changes` : `/v1/topics/${name}/records`;
  const { answer, failure } = useLive<Found & Written>(tables.answer && `${path}?limit=${panel.rows}${search}`);
  const isTable = panel.kind !== "line" && (isWritten || topic?.compaction === true);
  const rows = useMemo(() => {
    const seen = new Set<string | null>();
    const changes = (answer?.changes ?? []).filter((each) => each.weight !== 0);
    const written = changes.map(({ key, row, weight }) => ({ key: text(key), value: weight > 0 ? row : null }));
    return (answer?.records ?? written)
      .filter(({ key }) => !isTable || (!seen.has(key) && seen.add(key)))
      .map((each) => each.value)
      .filter((each): each is Row => typeof each === "object" && each !== null)
      .filter((row) => !(Number(row["weight"]) < 0));
  }, [answer, isTable]);
  return { rows, failure: tables.failure ?? failure, scanned: answer && answer.scanned };
}

function LivePanel({ panel }: { panel: Panel }) {
  const { rows, failure, scanned } = useRows(panel);
  return (
    <>
      <Problem failure={failure} />
      {scanned !== null && rows.length === 0 && <p class="faint">No records yet.</p>}
      {rows.length > 0 && panel.kind === "number" && <p class="big">{shown(field(rows[0]!, panel.y!))}</p>}
      {rows.length > 0 && panel.kind === "table" && <Rows panel={panel} rows={rows} />}
      {rows.length > 0 && panel.kind === "bar" && <Bars panel={panel} rows={rows} />}
      {rows.length > 0 && panel.kind === "heat" && <Heat panel={panel} rows={rows} />}
      {rows.length > 0 && panel.kind === "line" && <Lines panel={panel} rows={rows} />}
    </>
  );
}

function SearchPanel({ panel }: { panel: Panel }) {
  const [typed, setTyped] = useState("");
  const [asked, setAsked] = useState("");
  const { rows, failure, scanned } = useRows(panel, asked && `&text=${encodeURIComponent(asked)}`);
  return (
    <>
      <form class="bar" role="search" onSubmit={(event) => {
        event.preventDefault();
        setAsked(typed);
      }}>
        <label>
          Text <input type="search" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
        </label>
        <button type="submit" class="primary">
          Search
        </button>
        <span class="faint" role="status">
          {scanned !== null && asked ? `${count(rows.length)} found in ${count(scanned)} records` : ""}
        </span>
      </form>
      <Problem failure={failure} />
      {scanned !== null && rows.length === 0 && <p class="faint">No records.</p>}
      {rows.length > 0 && <Rows panel={panel} rows={rows} />}
    </>
  );
}

/** A column, or a field of a struct: window.start. */
function field(row: Row, path: string): unknown {
  if (path in row) return row[path];
  return path.split(".").reduce<unknown>((value, name) => (value as Row | null)?.[name], row);
}

const shown = (value: unknown): string =>
  typeof value === "number" ? count(Math.round(value * 100) / 100) : text(value);

function Rows({ panel, rows }: { panel: Panel; rows: Row[] }) {
  const columns = panel.columns.length > 0 ? panel.columns : Object.keys(rows[0]!);
  return (
    <Sheet label={panel.title} head={columns}>
      {rows.slice(0, 20).map((row, number) => (
        <tr key={number}>
          {columns.map((column) => (
            <td key={column} class="value">
              {shown(field(row, column))}
            </td>
          ))}
        </tr>
      ))}
    </Sheet>
  );
}

function Bars({ panel, rows }: { panel: Panel; rows: Row[] }) {
  const newest = new Map<string, number>();
  for (const row of rows) {
    const name = text(field(row, panel.x!));
    if (!newest.has(name)) newest.set(name, Number(field(row, panel.y!)));
  }
  const bars = [...newest].sort(([a], [b]) => a.localeCompare(b));
  const longest = Math.max(...bars.map(([, value]) => value), 0) || 1;
  return (
    <dl class="bars">
      {bars.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>
            <span class="length" style={{ width: `${Math.max(0, (value / longest) * 70)}%` }} /> {shown(value)}
          </dd>
        </div>
      ))}
    </dl>
  );
}

/** Darker cells have larger values. */
function Heat({ panel, rows }: { panel: Panel; rows: Row[] }) {
  const cells = new Map<string, number>();
  const [across, down] = [new Set<string>(), new Set<string>()];
  for (const row of rows) {
    const [column, line] = [text(field(row, panel.x!)), text(field(row, panel.by!))];
    const value = Number(field(row, panel.y!));
    if (!Number.isFinite(value) || cells.has(`${line}\n${column}`)) continue;
    across.add(column);
    down.add(line);
    cells.set(`${line}\n${column}`, value);
  }
  const columns = [...across].sort().slice(-HEAT_COLUMNS);
  const values = [...cells.values()];
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const share = (value: number) => 4 + 41 * ((value - low) / (high - low || 1)); // text stays legible on the darkest
  return (
    <Sheet label={panel.title} head={["", ...columns.map(brief)]}>
      {[...down].sort().map((line) => (
        <tr key={line}>
          <th scope="row">{line}</th>
          {columns.map((column) => {
            const value = cells.get(`${line}\n${column}`);
            return (
              <td key={column} class="number heat" style={value === undefined ? {} : { "--share": `${share(value)}%` }}>
                {value === undefined ? "" : shown(value)}
              </td>
            );
          })}
        </tr>
      ))}
    </Sheet>
  );
}

const HEAT_COLUMNS = 8;
const brief = (value: string): string => (/^\d{4}-\d\d-\d\dT/.test(value) ? value.slice(11, 19) : value);

/** Of a line: neighbours differ, and all stand out from the background, light or dark. */
const colour = (number: number): string => {
  const hue = (number * 137) % 360;
  return `light-dark(hsl(${hue} 65% 38%), hsl(${hue} 70% 70%))`;
};

const WIDTH = 560;
const HEIGHT = 220;
const EDGE = 44;

function Lines({ panel, rows }: { panel: Panel; rows: Row[] }) {
  const lines = new Map<string, Map<number, number>>();
  for (const row of rows) {
    const at = place(field(row, panel.x!));
    const value = Number(field(row, panel.y!));
    if (!Number.isFinite(at) || !Number.isFinite(value)) continue;
    const name = panel.by ? text(field(row, panel.by)) : panel.y!;
    if (!lines.has(name)) lines.set(name, new Map());
    if (!lines.get(name)!.has(at)) lines.get(name)!.set(at, value); // a newer pane replaces those before
  }
  const points = [...lines.values()].flatMap((line) => [...line]);
  const [x0, x1] = [Math.min(...points.map(([at]) => at)), Math.max(...points.map(([at]) => at))];
  const [y0, y1] = [Math.min(0, ...points.map(([, value]) => value)), Math.max(...points.map(([, value]) => value))];
  const x = (at: number) => EDGE + ((at - x0) / (x1 - x0 || 1)) * (WIDTH - EDGE - 8);
  const y = (value: number) => HEIGHT - 24 - ((value - y0) / (y1 - y0 || 1)) * (HEIGHT - 36);
  const names = [...lines.keys()].sort();
  const isTime = typeof field(rows[0]!, panel.x!) === "string";
  const label = (at: number) => (isTime ? new Date(at).toISOString().slice(11, 19) : shown(at));
  return (
    <>
      <svg class="lines" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={`${panel.title}: ${names.length} lines from ${label(x0)} to ${label(x1)}`}>
        <text x={EDGE - 6} y={y(y1) + 4} text-anchor="end">{shown(y1)}</text>
        <text x={EDGE - 6} y={y(y0) + 4} text-anchor="end">{shown(y0)}</text>
        <text x={EDGE} y={HEIGHT - 6}>{label(x0)}</text>
        <text x={WIDTH - 8} y={HEIGHT - 6} text-anchor="end">{label(x1)}</text>
        <path class="axis" d={`M${EDGE},${y(y1)}V${y(y0)}H${WIDTH - 8}`} />
        {names.map((name, number) => (
          <path
            key={name}
            class="series"
            style={{ stroke: colour(number) }}
            d={`M${[...lines.get(name)!].sort(([a], [b]) => a - b).map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join("L")}`}
          />
        ))}
      </svg>
      {panel.by && (
        <p class="faint">
          {names.slice(0, 12).map((name, number) => (
            <span key={name}>
              <span class="stroke" style={{ background: colour(number) }} /> {name}
            </span>
          ))}
        </p>
      )}
    </>
  );
}

const place = (value: unknown): number => (typeof value === "string" ? Date.parse(value) : Number(value));
