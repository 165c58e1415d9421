// What went wrong, in words for whoever sits before the page.

/** A failure as the page shows it; `remedy` is "key", "wait" or null. */
export class Failure extends Error {
  constructor(title, detail, { remedy = null, seconds = null } = {}) {
    super(title);
    this.title = title;
    this.detail = detail;
    this.remedy = remedy;
    this.seconds = seconds;
  }
}

/** The server could not be reached at all. */
export function unreachable() {
  return new Failure(
    "The server cannot be reached.",
    "It may have stopped, or the connection is gone. Your conversation is kept here.",
  );
}

/** The stream ended before the answer did. */
export function brokenOff() {
  return new Failure(
    "The answer broke off.",
    "The connection ended before the answer was complete.",
  );
}

/** An error that the server sent within a stream. */
export function duringStream(error) {
  return new Failure("The server could not go on.", said(error) ?? "It gave no reason.");
}

/** What a response other than 2xx means: its status, body text and Retry-After header. */
export function fromResponse(status, body, retryAfter) {
  const error = errorObject(body);
  const detail = said(error) ?? `The server answered with status ${status}.`;
  const seconds = waitingTime(retryAfter);
  const wait = { remedy: "wait", seconds };
  if (status === 401) {
    return new Failure("This server asks for an API key.", detail, { remedy: "key" });
  }
  if (status === 429 || error?.code === "queue_timeout") {
    // The server says to come again; this page says when.
    const why = detail.replace(/;? ?try again later\.$/, ".");
    return new Failure("The server is busy.", `${why} ${again(seconds)}`, wait);
  }
  if (status === 503) return unavailable(error, detail, seconds, wait);
  if (status === 413 || error?.code === "context_length_exceeded") {
    const advice = "Start a new conversation, or edit your message to make it shorter.";
    return new Failure("This conversation has become too long.", `${detail} ${advice}`);
  }
  if (status >= 400 && status < 500) {
    return new Failure("The server does not accept this request.", detail);
  }
  if (status === 504) return new Failure("The answer took too long.", detail);
  return new Failure("The server failed.", detail);
}

function unavailable(error, detail, seconds, wait) {
  switch (error?.code) {
    case "loading":
      return new Failure("The model is still loading.", again(seconds), wait);
    case "worker_dead":
      return new Failure("The model has stopped.", "The server must be started again.");
    case "shutting_down":
      return new Failure("The server is shutting down.", "Start it again to go on.");
    default:
      return new Failure("The server is not ready.", `${detail} ${again(seconds)}`, wait);
  }
}

function again(seconds) {
  if (seconds === null) return "Try again in a moment.";
  return `Try again in ${seconds === 1 ? "a second" : `${seconds} seconds`}.`;
}

/** `Retry-After` in seconds, given as such or as a date; null if there is none. */
export function waitingTime(header, now = Date.now()) {
  if (!header) return null;
  const seconds = /^\d+$/.test(header) ? Number(header) : (Date.parse(header) - now) / 1000;
  return Number.isFinite(seconds) && seconds > 0 ? Math.ceil(seconds) : null;
}

function errorObject(body) {
  try {
    return JSON.parse(body)?.error ?? null;
  } catch {
    return null;
  }
}

/** The server's own words as a sentence. */
function said(error) {
  const message = error?.message;
  if (typeof message !== "string" || message === "") return null;
  const sentence = message[0].toUpperCase() + message.slice(1);
  return /[.!?]$/.test(sentence) ? sentence : `${sentence}.`;
}
