// The bridges into the log and out of it, as they report themselves.
import { useLive } from "../api";
import { bytes, count, Problem, Sheet, span, State } from "../shown";

interface Behind {
  amount: number;
  unit: "messages" | "bytes" | "seconds" | "records";
}

interface Bridge {
  name: string;
  kind: string;
  topics: string[];
  state: string;
  reason: string | null;
  stored: number;
  sent: number;
  duplicates: number;
  dead: number;
  missing: number | null;
  per_s: number;
  waiting: number;
  waiting_s: number;
  behind: Behind | null;
}

const HEAD = ["Bridge", "Kind", "Topics", "State", "Per second", "Waiting", "For", "Behind", "Stored", "Delivered", "Duplicates", "Dead", "Missing"];

export function Bridges() {
  const { answer, failure } = useLive<Bridge[]>("/v1/bridges");
  return (
    <>
      <h1>Bridges</h1>
      <Problem failure={failure} />
      {answer?.length === 0 && (
        <p class="faint">
          No bridge runs. Start one with <code>millstream listen</code>, or many with <code>millstream bridge run</code>.
        </p>
      )}
      {answer && answer.length > 0 && (
        <Sheet label="Bridges" head={HEAD}>
          {answer.map((each) => (
            <tr key={each.name}>
              <th scope="row">{each.name}</th>
              <td>{each.kind}</td>
              <td>{each.topics.join(", ") || "all"}</td>
              <td>
                <State of={each.state} />
                {each.reason && <div class="faint">{each.reason}</div>}
              </td>
              <td class="number">{each.per_s < 10 ? each.per_s.toFixed(1) : count(Math.round(each.per_s))}</td>
              <td class="number">{count(each.waiting)}</td>
              <td class="number">{span(each.waiting_s)}</td>
              <td class="number">{each.behind ? distance(each.behind) : "–"}</td>
              <td class="number">{count(each.stored)}</td>
              <td class="number">{count(each.sent)}</td>
              <td class="number">{count(each.duplicates)}</td>
              <td class="number">{count(each.dead)}</td>
              <td class="number">{each.missing === null ? "–" : count(each.missing)}</td>
            </tr>
          ))}
        </Sheet>
      )}
    </>
  );
}

function distance({ amount, unit }: Behind): string {
  if (unit === "bytes") return bytes(amount);
  if (unit === "seconds") return span(amount);
  return `${count(amount)} ${unit}`;
}
