// The signed-in caller and what the roles allow.
import { computed, signal } from "@preact/signals";
import { get, post, refetchAll, remove, signInNeeded } from "./api";
import type { Role, Session } from "./types";

export const session = signal<Session | null>(null);

const has = (role: Role) => computed(() => session.value?.roles.includes(role) ?? false);

/** Pause, purge, replay, delete, move, edit, settings, drop, import. */
export const mayOperate = has("operate");
export const maySend = has("send");

export async function loadSession(): Promise<void> {
  session.value = await get<Session>("/api/session");
  signInNeeded.value = false;
}

export async function signIn(token: string): Promise<void> {
  session.value = await post<Session>("/api/session", { token });
  signInNeeded.value = false;
  refetchAll();
}

export async function signOut(): Promise<void> {
  await remove("/api/session");
  session.value = null;
  signInNeeded.value = true;
}
