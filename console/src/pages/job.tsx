// One job: how it is doing, its runs and what went wrong in them, and its log.
import { useEffect, useRef, useState } from "preact/hooks";
import { act, acts, type Failure, follow, useAnswer, useLive } from "../api";
import { Act, bytes, count, Facts, moment, Problem, Sheet, span, State } from "../shown";
import { Errors } from "./errors";
import { Alerts, Savepoints } from "./job_more";
import type { JobRow } from "./jobs";
import { PlanPage } from "./plan";
import { PlanePage } from "./plane";
import { SilenceBanner } from "./silence";
import { StateOfStep } from "./state";
import { Upgrades } from "./upgrades";

interface Run {
  number: number;
  why: string;
  started: number;
  ended: number | null;
  code: number | null;
  result: string | null;
}

export interface Process {
  pid: number;
  kind: string;
  host: string;
  since: number;
  cpu_s: number;
  memory_bytes: number;
}

interface Executor {
  id: string;
  host: string;
  since: number;
  cores: number;
  task_s: number;
  jvm_memory_bytes: number | null;
  python_memory_bytes: number | null;
}

interface JobDetails extends JobRow {
  file: string;
  owner: string;
  created: number;
  params: Record<string, string>;
  options: string[];
  restart: string;
  processes: Process[];
  executors: Executor[];
  last_runs: Run[];
}

const TABS: [string, string][] = [
  ["overview", "Overview"],
  ["plan", "Plan"],
  ["plane", "Time plane"],
  ["runs", "Runs"],
  ["errors", "Errors"],
  ["log", "Log"],
  ["savepoints", "Savepoints"],
  ["upgrades", "Upgrades"],
  ["state", "State"],
  ["alerts", "Alerts"],
];
const ENDED_WELL = ["finished", "stopped"];

export function Job({ name, tab, part }: { name: string; tab: string; part: string | undefined }) {
  const path = `/v1/jobs/${encodeURIComponent(name)}`;
  const { answer, failure } = useLive<JobDetails>(path);
  const here = `#/jobs/${encodeURIComponent(name)}`;
  return (
    <>
      <p class="crumbs">
        <a href="#/jobs">Jobs</a>
      </p>
      <h1>
        {name} {answer && <State of={answer.state} />}
      </h1>
      <Problem failure={failure} />
      {answer && (
        <div class="bar">
          <Act label="Start" does={() => act(`${path}/start`)} />
          <Act label="Stop" does={() => act(`${path}/stop`)} />
          <Act label="Restart" does={() => act(`${path}/restart`)} />
          {answer.state !== "running" && answer.state !== "stopping" && <Delete name={name} path={path} />}
        </div>
      )}
      {answer?.state === "running" && <SilenceBanner path={path} />}
      <nav class="tabs" aria-label="Parts of the job">
        {TABS.map(([at, label]) => (
          <a key={at} href={`${here}/${at}`} aria-current={tab === at ? "page" : undefined}>
            {label}
          </a>
        ))}
      </nav>
      {tab === "overview" && answer && <Overview job={answer} />}
      {tab === "plan" && <PlanPage name={name} processes={answer?.processes ?? []} />}
      {tab === "plane" && <PlanePage name={name} step={part} />}
      {tab === "runs" && <Runs path={path} here={here} />}
      {tab === "errors" && <Errors path={path} />}
      {tab === "savepoints" && <Savepoints job={name} />}
      {tab === "upgrades" && answer && <Upgrades path={path} file={answer.file} />}
      {tab === "state" && <StateOfStep path={path} />}
      {tab === "alerts" && <Alerts job={name} />}
      {tab === "log" && answer && <Logs path={path} here={here} newest={answer.runs} chosen={part} />}
    </>
  );
}

/** Lets the supervisor forget a job, after a second click; its outputs and its state stay. */
function Delete({ name, path }: { name: string; path: string }) {
  const [sure, setSure] = useState(false);
  const remove = async () => {
    await act(path, undefined, "DELETE");
    location.hash = "#/jobs";
  };
  if (!acts) return null;
  if (sure) return <Act label={`Delete ${name} and the logs of its runs`} does={remove} />;
  return (
    <button type="button" onClick={() => setSure(true)}>
      Delete…
    </button>
  );
}

function Overview({ job }: { job: JobDetails }) {
  return (
    <>
      {job.reason && <Problem failure={{ kind: "", what: job.reason, where: null, next: null }} />}
      {job.waits_for && <p class="reason">It waits for {job.waits_for}</p>}
      <Facts
        of={[
          ["Rows", count(job.rows)],
          ["Rows per second", count(job.rows_per_s)],
          ["Lag, records", count(job.lag)],
          ["Watermark", job.watermark],
          ["Late rows", count(job.late)],
          ["Dead letters", count(job.dead)],
          ["Batch", count(job.batch)],
          ["Failures in a row", count(job.failures)],
        ]}
      />
      <h2>Processes</h2>
      {job.processes.length === 0 ? (
        <p class="faint">None: the job does not run.</p>
      ) : (
        <Sheet label="Processes" head={["Process", "PID", "Host", "Since", "CPU", "Memory"]}>
          {job.processes.map((each) => (
            <tr key={each.pid}>
              <th scope="row">{each.kind}</th>
              <td class="number">{each.pid}</td>
              <td>{each.host}</td>
              <td>{moment(each.since)}</td>
              <td class="number">{span(each.cpu_s)}</td>
              <td class="number">{bytes(each.memory_bytes)}</td>
            </tr>
          ))}
        </Sheet>
      )}
      {job.executors.length > 0 && (
        <>
          <h2>Executors</h2>
          <Sheet label="Executors" head={["Executor", "Host", "Since", "Cores", "Time in tasks", "JVM memory, most", "Python memory, most"]}>
            {job.executors.map((each) => (
              <tr key={each.id}>
                <th scope="row">{each.id}</th>
                <td>{each.host}</td>
                <td>{moment(each.since)}</td>
                <td class="number">{count(each.cores)}</td>
                <td class="number">{span(each.task_s)}</td>
                <td class="number">{each.jvm_memory_bytes === null ? "–" : bytes(each.jvm_memory_bytes)}</td>
                <td class="number">{each.python_memory_bytes === null ? "–" : bytes(each.python_memory_bytes)}</td>
              </tr>
            ))}
          </Sheet>
        </>
      )}
      <h2>Settings</h2>
      <Facts
        of={[
          ["File", <code>{job.file}</code>],
          ["Parameters", Object.entries(job.params).map(([each, value]) => `${each}=${value}`).join(", ") || "–"],
          ["Options", job.options.join(" ") || "–"],
          ["Restart", job.restart],
          ["Schedule", job.schedule ?? "–"],
          ["Next start", moment(job.next_start)],
          ["Owner", job.owner],
          ["Submitted", moment(job.created)],
        ]}
      />
    </>
  );
}

function Runs({ path, here }: { path: string; here: string }) {
  const { answer, failure } = useLive<Run[]>(`${path}/runs`);
  return (
    <>
      <Problem failure={failure} />
      {answer?.length === 0 && <p class="faint">It has not run yet.</p>}
      {answer && answer.length > 0 && (
        <Sheet label="Runs" head={["Run", "Why", "Started", "Ended", "Took", "Exit code", "Result"]}>
          {answer.map((run) => (
            <tr key={run.number}>
              <th scope="row">
                <a href={`${here}/log/${run.number}`} aria-label={`Log of run ${run.number}`}>
                  {run.number}
                </a>
              </th>
              <td>{run.why}</td>
              <td>{moment(run.started)}</td>
              <td>{moment(run.ended)}</td>
              <td class="number">{run.ended ? span(run.ended - run.started) : "–"}</td>
              <td class="number">{run.code ?? "–"}</td>
              <td class={run.result && !ENDED_WELL.includes(run.result) ? "reason" : ""}>{run.result ?? "running"}</td>
            </tr>
          ))}
        </Sheet>
      )}
    </>
  );
}

const KEPT = 400_000;
const FIRST = 65_536;

/** The log of a run, by default of the newest: another one is part of the address. */
function Logs({ path, here, newest, chosen }: { path: string; here: string; newest: number; chosen: string | undefined }) {
  const { answer } = useAnswer<Run[]>(`${path}/runs?newest=${newest}`);
  const run = Number(chosen) || newest;
  return (
    <>
      {answer && answer.length > 0 && (
        <div class="bar">
          <label>
            Run{" "}
            <select
              value={String(run)}
              onChange={(event) => {
                const number = Number(event.currentTarget.value);
                location.hash = `${here}/log${number === newest ? "" : `/${number}`}`;
              }}
            >
              {answer.map((each) => (
                <option key={each.number} value={String(each.number)}>
                  {each.number}, {each.result ?? "running"}, {moment(each.started)}
                </option>
              ))}
            </select>
          </label>
        </div>
      )}
      <Log key={run} path={path} run={run} />
    </>
  );
}

function Log({ path, run }: { path: string; run: number }) {
  const [lines, setLines] = useState("");
  const [failure, setFailure] = useState<Failure | null>(null);
  const [follows, setFollows] = useState(true);
  const end = useRef<HTMLPreElement>(null);
  useEffect(() => {
    if (run === 0) return undefined;
    return follow<{ text: string }>(
      `${path}/logs?run=${run}&offset=-${FIRST}`,
      (part) => setLines((before) => (before + part.text).slice(-KEPT)),
      setFailure,
    );
  }, [path, run]);
  useEffect(() => {
    if (follows && end.current) end.current.scrollTop = end.current.scrollHeight;
  }, [lines, follows]);
  return (
    <>
      <Problem failure={failure} />
      <div class="bar">
        <label>
          <input type="checkbox" checked={follows} onChange={(event) => setFollows(event.currentTarget.checked)} /> Follow
        </label>
      </div>
      <pre class="log" ref={end} tabIndex={0} aria-label="Log">
        {lines || "It has printed nothing."}
      </pre>
    </>
  );
}
