// Signing in with a token. Only the server's cookie keeps it.
import { useState } from "preact/hooks";
import { ApiError, explain } from "../api";
import { signIn } from "../session";

export function SignInPage() {
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const submit = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    const token = String(new FormData(event.currentTarget as HTMLFormElement).get("token") ?? "").trim();
    setBusy(true);
    try {
      await signIn(token);
    } catch (error) {
      setProblem(error instanceof ApiError && error.status === 401 ? "This token is not valid." : explain(error));
      setBusy(false);
    }
  };
  return (
    <main class="sign-in">
      <form class="panel" onSubmit={(event) => void submit(event)}>
        <img src="/favicon.svg" alt="" width="40" height="40" />
        <h1>Restante</h1>
        <p class="muted">Sign in with a token that has the read role.</p>
        <label class="field">
          <span>Token</span>
          <input name="token" type="password" autocomplete="current-password" required autofocus placeholder="rst_…" data-part="sign-in-token" />
        </label>
        <p class="problem" role="alert">
          {problem}
        </p>
        <button type="submit" class="primary" disabled={busy}>
          Sign in
        </button>
      </form>
    </main>
  );
}
