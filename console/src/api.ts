// The supervisor's HTTP interface from a page: questions, actions, and answers as they change.
import { useEffect, useState } from "preact/hooks";

export interface Failure {
  kind: string;
  what: string;
  where: string | null;
  next: string | null;
}

export class Refused extends Error {
  constructor(readonly failure: Failure) {
    super(failure.what);
  }
}

let csrf = "";

/** Whether this console may change something; one beside a job that runs by itself only shows it. */
export let acts = true;

/** Who is logged in; without a session the page is loaded again, and is then the one that logs in. */
export async function begin(): Promise<string> {
  const answer = await fetch("/console/session");
  if (!answer.ok) {
    location.reload();
    return "";
  }
  const found = (await answer.json()) as { csrf: string; user: string; acts: boolean };
  csrf = found.csrf;
  acts = found.acts;
  return found.user;
}

export async function ask<T>(path: string): Promise<T> {
  return read<T>(await fetch(path));
}

export async function act<T>(path: string, body?: unknown, method = "POST"): Promise<T> {
  return read<T>(
    await fetch(path, {
      method,
      headers: { "content-type": "application/json", "x-millstream-csrf": csrf },
      body: body === undefined ? null : JSON.stringify(body),
    }),
  );
}

async function read<T>(answer: Response): Promise<T> {
  const document = (await answer.json()) as T & { error?: Failure };
  if (!answer.ok) {
    if (answer.status === 401) location.reload();
    throw new Refused(document.error ?? { kind: "", what: `the answer was ${answer.status}`, where: null, next: null });
  }
  return document;
}

/** Calls `taken` with each answer to a path that differs from the last, while the page can be seen. */
export function follow<T>(path: string, taken: (answer: T) => void, refused: (failure: Failure) => void): () => void {
  let source: EventSource | null = null;
  const open = () => {
    if (source || document.hidden) return;
    source = new EventSource(`/console/live?path=${encodeURIComponent(path)}`);
    source.addEventListener("answer", (event) => taken(JSON.parse((event as MessageEvent<string>).data) as T));
    source.addEventListener("refused", (event) =>
      refused((JSON.parse((event as MessageEvent<string>).data) as { error: Failure }).error),
    );
    source.addEventListener("error", () => {
      if (source?.readyState === EventSource.CLOSED) {
        refused({ kind: "Gone", what: "the supervisor does not answer", where: null, next: "start it: millstream up" });
      }
    });
  };
  const close = () => {
    source?.close();
    source = null;
  };
  // Browsers allow few connections to one server: pages in the background have none.
  const changed = () => (document.hidden ? close() : open());
  document.addEventListener("visibilitychange", changed);
  open();
  return () => {
    document.removeEventListener("visibilitychange", changed);
    close();
  };
}

export interface Live<T> {
  answer: T | null;
  failure: Failure | null;
}

/** The newest answer to a path. */
export function useLive<T>(path: string | null): Live<T> {
  const [found, change] = useState<Live<T>>({ answer: null, failure: null });
  useEffect(() => {
    change({ answer: null, failure: null });
    if (path === null) return undefined;
    return follow<T>(
      path,
      (answer) => change({ answer, failure: null }),
      (failure) => change((before) => ({ ...before, failure })),
    );
  }, [path]);
  return found;
}

/** The answer to a path, asked once. */
export function useAnswer<T>(path: string | null): Live<T> {
  const [found, change] = useState<Live<T>>({ answer: null, failure: null });
  useEffect(() => {
    let wanted = true;
    change({ answer: null, failure: null });
    if (path === null) return undefined;
    ask<T>(path).then(
      (answer) => wanted && change({ answer, failure: null }),
      (error: unknown) => wanted && change({ answer: null, failure: failureOf(error) }),
    );
    return () => {
      wanted = false;
    };
  }, [path]);
  return found;
}

export function failureOf(error: unknown): Failure {
  return error instanceof Refused ? error.failure : { kind: "", what: String(error), where: null, next: null };
}
