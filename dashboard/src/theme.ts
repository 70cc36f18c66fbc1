// Light or dark: the system's setting, until the viewer chooses a theme. The browser keeps the choice.
import { signal } from "@preact/signals";

const KEY = "restante-theme";
const system = window.matchMedia("(prefers-color-scheme: dark)");

function stored(): "light" | "dark" | null {
  try {
    const value = window.localStorage.getItem(KEY);
    return value === "light" || value === "dark" ? value : null;
  } catch {
    return null;
  }
}

export const theme = signal<"light" | "dark">(stored() ?? (system.matches ? "dark" : "light"));

theme.subscribe((value) => {
  document.documentElement.dataset.theme = value;
});

system.addEventListener("change", () => {
  if (stored() === null) theme.value = system.matches ? "dark" : "light";
});

export function toggleTheme(): void {
  theme.value = theme.peek() === "dark" ? "light" : "dark";
  try {
    window.localStorage.setItem(KEY, theme.peek());
  } catch {
    // Without storage the choice lasts until the page is closed.
  }
}
