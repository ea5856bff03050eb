// All jobs of the supervisor.
import { useState } from "preact/hooks";
import { useLive } from "../api";
import { count, Problem, Sheet, State } from "../shown";

export interface JobRow {
  name: string;
  state: string;
  wanted: string;
  reason: string | null;
  runs: number;
  failures: number;
  next_start: number | null;
  schedule: string | null;
  rows: number | null;
  rows_per_s: number | null;
  lag: number | null;
  watermark: string | null;
  late: number | null;
  dead: number | null;
  batch: number | null;
  waits_for: string | null;
}

const SHOWN = 200;

export function Jobs() {
  const { answer, failure } = useLive<JobRow[]>("/v1/jobs");
  const [search, setSearch] = useState("");
  const [shown, setShown] = useState(SHOWN);
  const found = (answer ?? []).filter((job) => `${job.name} ${job.state}`.includes(search));
  return (
    <>
      <h1>Jobs</h1>
      <Problem failure={failure} />
      <div class="bar">
        <label>
          Search <input value={search} onInput={(event) => setSearch(event.currentTarget.value)} type="search" />
        </label>
        <span class="faint" role="status">
          {answer ? `${count(found.length)} of ${count(answer.length)} jobs` : "Loading…"}
        </span>
      </div>
      {answer && answer.length === 0 && (
        <p>
          No jobs yet. Submit one: <code>millstream jobs submit flow.py</code>
        </p>
      )}
      {found.length > 0 && (
        <Sheet label="Jobs" head={["Job", "State", "Rows", "Rows/s", "Lag", "Watermark", "Late", "Dead", "Runs"]}>
          {found.slice(0, shown).map((job) => (
            <tr key={job.name}>
              <th scope="row">
                <a href={`#/jobs/${encodeURIComponent(job.name)}`}>{job.name}</a>
                {job.reason && <div class="reason">{job.reason}</div>}
              </th>
              <td>
                <State of={job.state} />
              </td>
              <td class="number">{count(job.rows)}</td>
              <td class="number">{count(job.rows_per_s)}</td>
              <td class="number">{count(job.lag)}</td>
              <td>{job.watermark ?? "–"}</td>
              <td class="number">{count(job.late)}</td>
              <td class="number">{count(job.dead)}</td>
              <td class="number">{count(job.runs)}</td>
            </tr>
          ))}
        </Sheet>
      )}
      {found.length > shown && (
        <button type="button" onClick={() => setShown(shown + SHOWN)}>
          Show more
        </button>
      )}
      <p>
        <a href="/v1/bundle" download="millstream-bundle.zip">
          Bundle for support
        </a>
      </p>
    </>
  );
}
