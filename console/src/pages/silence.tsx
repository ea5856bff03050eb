// A banner on the pages of a running job that writes nothing: why, and what to do.
import { useLive } from "../api";
import { moment } from "../shown";

interface Silence {
  is_silent: boolean;
  silent_since: number | null;
  findings: { kind: string; what: string; next_step: string }[];
}

export function SilenceBanner({ path }: { path: string }) {
  const { answer } = useLive<Silence>(`${path}/why-silent`);
  if (!answer?.is_silent || answer.findings.length === 0) return null;
  return (
    <section class="problem" aria-label="Why is nothing coming out?">
      <strong>
        Nothing comes out{answer.silent_since !== null && `, since ${moment(answer.silent_since)}`}:
      </strong>
      {answer.findings.map((each) => (
        <div key={each.what}>
          {each.what}
          <div class="faint">{each.next_step}</div>
        </div>
      ))}
    </section>
  );
}
