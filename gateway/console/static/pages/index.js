// The pages, in the order of the navigation, and the roles that see them: those of the routes that a page reads (docs/reference/admin-api.md).
import { Cache } from "./cache.js";
import { Fleet } from "./fleet.js";
import { Guards } from "./guards.js";
import { Health } from "./health.js";
import { Overload } from "./overload.js";
import { Requests } from "./requests.js";

const READERS = ["owner", "admin", "operator", "billing", "auditor"];

export const PAGES = [
  { key: "fleet", title: "Fleet", roles: READERS, view: Fleet },
  { key: "requests", title: "Requests", roles: [...READERS, "tenant-admin"], view: Requests },
  { key: "cache", title: "Cache", roles: [...READERS, "tenant-admin"], view: Cache },
  { key: "guards", title: "Guards", roles: [...READERS, "tenant-admin"], view: Guards },
  { key: "overload", title: "Overload", roles: READERS, view: Overload },
  { key: "health", title: "Gateway", roles: READERS, view: Health },
];
