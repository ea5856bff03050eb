// Savepoints and alerts of a job.
import { useState } from "preact/hooks";
import { act, acts, useLive } from "../api";
import { Act, bytes, count, moment, Problem, Sheet } from "../shown";

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
