// What can be done with the state of a job: savepoints, upgrades and the way back, alerts, and a look at the state.
import { useState } from "preact/hooks";
import { act, acts, ask, type Failure, failureOf, useAnswer, useLive } from "../api";
import { Act, bytes, count, Facts, moment, Problem, Sheet, text } from "../shown";

interface Savepoint {
  name: string;
  job: string;
  batch: number;
  taken: number;
  size_bytes: number;
  why: string;
}

export function Savepoints({ job }: { job: string }) {
  const { answer, failure } = useLive<Savepoint[]>(`/v1/savepoints?job=${encodeURIComponent(job)}`);
  const [name, setName] = useState("");
  const [said, say] = useState("");
  const take = async () => {
    const made = await act<Savepoint>(`/v1/jobs/${encodeURIComponent(job)}/savepoint`, { name: name || null });
    say(`Took ${made.name}, of batch ${count(made.batch)}`);
  };
  const restore = async (savepoint: string) => {
    const done = await act<{ before: string | null }>(`/v1/savepoints/${encodeURIComponent(savepoint)}/restore`, { into: null });
    say(`Restored ${savepoint}${done.before ? `; the state before is in ${done.before}` : ""}`);
  };
  return (
    <>
      <Problem failure={failure} />
      {acts && (
        <div class="bar">
          <label>
            Name, if you like <input value={name} onInput={(event) => setName(event.currentTarget.value)} />
          </label>
          <Act label="Take a savepoint" does={take} primary />
          <span role="status">{said}</span>
        </div>
      )}
      {answer?.length === 0 && <p class="faint">There are none.</p>}
      {answer && answer.length > 0 && (
        <Sheet label="Savepoints" head={["Savepoint", "Taken", "Batch", "Size", "Why", "", ""]}>
          {answer.map((each) => (
            <tr key={each.name}>
              <th scope="row">{each.name}</th>
              <td>{moment(each.taken)}</td>
              <td class="number">{count(each.batch)}</td>
              <td class="number">{bytes(each.size_bytes)}</td>
              <td>{each.why}</td>
              <td>
                <Act label="Restore" does={() => restore(each.name)} />
              </td>
              <td>
                <Act label="Remove" does={() => act(`/v1/savepoints/${encodeURIComponent(each.name)}`, undefined, "DELETE")} />
              </td>
            </tr>
          ))}
        </Sheet>
      )}
      <p class="faint">A savepoint is restored while the job does not run. The state before is kept as another savepoint.</p>
    </>
  );
}

interface Upgrade {
  phase: string;
  savepoint: string;
  steps: Fate[];
  user: string;
  started: number;
  watch_s: number | null;
  reason: string | null;
  file: string;
  file_before: string;
}

interface Fate {
  step: string;
  before: string | null;
  change: string;
  details: string;
}

export function Upgrades({ path, file }: { path: string; file: string }) {
  const { answer, failure } = useLive<Upgrade[]>(`${path}/upgrades`);
  const [given, setGiven] = useState({ file, watch: "10 minutes" });
  const [checked, setChecked] = useState<{ steps: Fate[] } | null>(null);
  const asked = () => ({ file: given.file, watch: given.watch || null });
  return (
    <>
      <Problem failure={failure} />
      {acts && (
        <div class="bar">
          <label class="wide">
            File of the new flow{" "}
            <input value={given.file} onInput={(event) => setGiven({ ...given, file: event.currentTarget.value })} />
          </label>
          <label>
            Watched for{" "}
            <input size={10} value={given.watch} onInput={(event) => setGiven({ ...given, watch: event.currentTarget.value })} />
          </label>
          <Act label="Check" does={async () => setChecked(await act(`${path}/upgrade`, { ...asked(), check: true }))} />
          <Act label="Upgrade" primary does={() => act(`${path}/upgrade`, asked())} />
          <Act label="Go back" does={() => act(`${path}/rollback`)} />
        </div>
      )}
      {checked && (
        <>
          <h2>What becomes of each step</h2>
          <Steps of={checked.steps} />
        </>
      )}
      <h2>Upgrades</h2>
      {answer?.length === 0 && <p class="faint">There were none.</p>}
      {answer && answer.length > 0 && (
        <Sheet label="Upgrades" head={["Started", "By", "Phase", "From", "To", "Savepoint", "Reason"]}>
          {answer.map((each) => (
            <tr key={each.started}>
              <td>{moment(each.started)}</td>
              <td>{each.user}</td>
              <td>{each.phase}</td>
              <td class="value">{each.file_before}</td>
              <td class="value">{each.file}</td>
              <td>{each.savepoint}</td>
              <td>{each.reason ?? ""}</td>
            </tr>
          ))}
        </Sheet>
      )}
    </>
  );
}

function Steps({ of }: { of: Fate[] }) {
  if (of.length === 0) return <p class="faint">No step keeps state.</p>;
  return (
    <Sheet label="Steps" head={["Step", "Before", "State", ""]}>
      {of.map((each) => (
        <tr key={each.step}>
          <th scope="row">{each.step}</th>
          <td>{each.before ?? "–"}</td>
          <td>{each.change}</td>
          <td>{each.details}</td>
        </tr>
      ))}
    </Sheet>
  );
}

interface AlertsFound {
  file: string;
  error: string | null;
  targets: { name: string; target: string; failures: number; error: string | null }[];
  rules: { rule: string; jobs: string[]; to: string[] }[];
  active: { rule: string; job: string; since: number; sent_at: number | null }[];
}

export function Alerts({ job }: { job: string }) {
  const { answer, failure } = useLive<AlertsFound>("/v1/alerts");
  const active = answer?.active.filter((each) => each.job === job) ?? [];
  const rules = answer?.rules.filter((each) => each.jobs.length === 0 || each.jobs.includes(job)) ?? [];
  return (
    <>
      <Problem failure={failure} />
      {answer?.error && <Problem failure={{ kind: "", what: answer.error, where: answer.file, next: null }} />}
      {answer && active.length === 0 && <p>No rule holds now.</p>}
      {active.map((each) => (
        <p key={each.rule} class="reason">
          {each.rule}, since {moment(each.since)}
          {each.sent_at !== null && `; sent at ${moment(each.sent_at)}`}
        </p>
      ))}
      {rules.length > 0 && (
        <>
          <h2>Rules</h2>
          <Sheet label="Rules" head={["Rule", "Sent to"]}>
            {rules.map((each) => (
              <tr key={each.rule}>
                <th scope="row">{each.rule}</th>
                <td>{each.to.join(", ") || "nobody"}</td>
              </tr>
            ))}
          </Sheet>
        </>
      )}
      {answer && answer.targets.length > 0 && (
        <>
          <h2>Targets</h2>
          <Sheet label="Targets" head={["Target", "Address", "Failures in a row", "Error"]}>
            {answer.targets.map((each) => (
              <tr key={each.name}>
                <th scope="row">{each.name}</th>
                <td class="value">{each.target}</td>
                <td class="number">{count(each.failures)}</td>
                <td>{each.error ?? ""}</td>
              </tr>
            ))}
          </Sheet>
          <Act label="Send a test message" does={() => act("/v1/alerts/test", {})} />
        </>
      )}
    </>
  );
}

interface StateFound {
  step: string;
  batch: number;
  tables: Record<string, Record<string, unknown>[]>;
}

export function StateOfStep({ path }: { path: string }) {
  const plan = useAnswer<{ logical: { name: string; kind: string }[] }>(`${path}/plan`);
  const steps = plan.answer?.logical.filter((each) => each.kind === "state").map((each) => each.name) ?? [];
  const [step, setStep] = useState("");
  const [key, setKey] = useState("");
  const [found, setFound] = useState<StateFound | null>(null);
  const [failure, setFailure] = useState<Failure | null>(null);
  const [busy, setBusy] = useState(false);
  const look = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setFailure(null);
    const query = new URLSearchParams([
      ["step", step || steps[0] || ""],
      ...key.split(",").map((each) => each.trim()).filter(Boolean).map((each) => ["key", each]),
    ]);
    try {
      setFound(await ask<StateFound>(`${path}/state?${query}`));
    } catch (error) {
      setFailure(failureOf(error));
    }
    setBusy(false);
  };
  return (
    <>
      <Problem failure={plan.failure} />
      {plan.answer && steps.length === 0 && <p>No step of the flow keeps state.</p>}
      {steps.length > 0 && (
        <form class="bar" onSubmit={look}>
          <label>
            Step{" "}
            <select value={step || steps[0]} onChange={(event) => setStep(event.currentTarget.value)}>
              {steps.map((each) => (
                <option key={each}>{each}</option>
              ))}
            </select>
          </label>
          <label>
            Key <input value={key} placeholder="team=red" onInput={(event) => setKey(event.currentTarget.value)} />
          </label>
          <button type="submit" class="primary" disabled={busy}>
            Look up
          </button>
          <span class="faint" role="status">
            {busy ? "Spark reads the checkpoint: this takes some seconds" : ""}
          </span>
        </form>
      )}
      <Problem failure={failure} />
      {found && <Facts of={[["After batch", count(found.batch)]]} />}
      {found &&
        Object.entries(found.tables).map(([name, rows]) => (
          <div key={name}>
            <h2>{name}</h2>
            <Rows name={name} rows={rows} />
          </div>
        ))}
    </>
  );
}

function Rows({ name, rows }: { name: string; rows: Record<string, unknown>[] }) {
  const columns = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  if (rows.length === 0) return <p class="faint">No rows.</p>;
  return (
    <Sheet label={name} head={columns}>
      {rows.slice(0, 200).map((row, number) => (
        <tr key={number}>
          {columns.map((column) => (
            <td key={column} class="value">
              {text(row[column])}
            </td>
          ))}
        </tr>
      ))}
    </Sheet>
  );
}
