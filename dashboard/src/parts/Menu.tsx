// A button that opens a list of actions. Escape, a choice, or a click elsewhere closes it.
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";

export function Menu({ label, children }: { label: string; children: ComponentChildren }) {
  const box = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    const shut = (event: Event): void => {
      const details = box.current;
      if (!details?.open) return;
      if (event instanceof KeyboardEvent) {
        if (event.key !== "Escape") return;
        details.querySelector("summary")?.focus();
      } else if (details.contains(event.target as Node) && !(event.target as Element).closest("button, a")) return;
      else if ((event.target as Element).closest("summary") && details.contains(event.target as Node)) return;
      details.open = false;
    };
    document.addEventListener("click", shut);
    document.addEventListener("keydown", shut);
    return () => {
      document.removeEventListener("click", shut);
      document.removeEventListener("keydown", shut);
    };
  }, []);
  return (
    <details class="menu" ref={box}>
      <summary>{label}</summary>
      <div class="menu-list">{children}</div>
    </details>
  );
}
