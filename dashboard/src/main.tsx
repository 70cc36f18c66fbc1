// Starts the dashboard: the theme first, then the page.
import "./theme";
import "./styles/tokens.css";
import "./styles/frame.css";
import "./styles/controls.css";
import "./styles/tables.css";
import "./styles/pages.css";
import { render } from "preact";
import { App } from "./app";

const root = document.getElementById("app");
if (root) render(<App />, root);
