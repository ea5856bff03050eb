// The errors of a job: equal ones together, each with its run, and what the current run has reported so far.
import { useState } from "preact/hooks";
import { useLive } from "../api";
import { count, Facts, moment, Problem, Sheet } from "../shown";

interface Reported {
  kind: string;
  what: string;
  where: string | null;
  next: string | null;
  details: string | null;
}

interface Failed extends Reported {
  run: number;
  at: number;
}

interface Group {
  what: string;
  where: string | null;
  next: string | null;
  times: number;
  first: number;
  last: number;
  last_run: number;
}

interface Found {
  groups: Group[];
  failures: Failed[];
  current: Reported[];
}

export function Errors({ path }: { path: string }) {
  const { answer, failure } = useLive<Found>(`${path}/failures`);
  const [chosen, choose] = useState<number | null>(null);
  const shown = answer?.failures.find((each) => each.run === chosen);
  return (
    <>
      <Problem failure={failure} />
      {answer && answer.current.length > 0 && (
        <>
          <h2>Of the current run</h2>
          {answer.current.map((each, number) => (
            <div key={number} class={each.kind === "error" ? "problem" : "card"}>
              <strong>
                {each.kind}: {each.what}
              </strong>
              {each.where && <div>{each.where}</div>}
              {each.next && <div class="faint">{each.next}</div>}
            </div>
          ))}
        </>
      )}
      {answer?.groups.length === 0 && <p>No run has failed.</p>}
      {answer && answer.groups.length > 0 && (
        <>
          <h2>By error</h2>
          <Sheet label="By error" head={["Error", "Where", "Times", "First", "Last", "Last run"]}>
            {answer.groups.map((each) => (
              <tr key={`${each.what} ${each.where}`}>
                <th scope="row" class="value">
                  {each.what}
                </th>
                <td class="value">{each.where ?? "–"}</td>
                <td class="number">{count(each.times)}</td>
                <td>{moment(each.first)}</td>
                <td>{moment(each.last)}</td>
                <td class="number">{each.last_run}</td>
              </tr>
            ))}
          </Sheet>
          <h2>Failed runs</h2>
          <Sheet label="Failed runs" head={["Run", "At", "Error"]}>
            {answer.failures.map((each) => (
              <tr key={each.run}>
                <th scope="row">
                  <button type="button" class="link" onClick={() => choose(each.run)}>
                    {each.run}
                  </button>
                </th>
                <td>{moment(each.at)}</td>
                <td class="value reason">{each.what}</td>
              </tr>
            ))}
          </Sheet>
        </>
      )}
      {shown && (
        <section class="card" aria-label="Error" aria-live="polite">
          <h2>Run {shown.run}</h2>
          <Facts of={[["Error", shown.what], ["Where", shown.where], ["Next step", shown.next], ["At", moment(shown.at)]]} />
          {shown.details && (
            <pre class="log" tabIndex={0} aria-label="Traceback">
              {shown.details}
            </pre>
          )}
        </section>
      )}
    </>
  );
}
