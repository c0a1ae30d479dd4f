// The pages, in the order of the navigation, and the roles that see them: those of the routes that a page reads (docs/reference/admin-api.md).
import { Cache } from "./cache.js";
import { Charts } from "./charts.js";
import { Fleet } from "./fleet.js";
import { Guards } from "./guards.js";
import { Health } from "./health.js";
import { Organisations } from "./organisations.js";
import { Overload } from "./overload.js";
import { Policies } from "./policies.js";
import { Requests } from "./requests.js";
import { Rollouts } from "./rollouts.js";
import { Tenants } from "./tenants.js";
import { UsagePage } from "./usage.js";

const READERS = ["owner", "admin", "operator", "billing", "auditor"];

export const PAGES = [
  { key: "fleet", title: "Fleet", roles: READERS, view: Fleet },
  { key: "requests", title: "Requests", roles: [...READERS, "tenant-admin"], view: Requests },
  { key: "organisations", title: "Organisations", roles: READERS, view: Organisations },
  { key: "tenants", title: "Tenants & keys", roles: [...READERS, "tenant-admin"], view: Tenants },
  { key: "usage", title: "Usage & cost", roles: [...READERS, "tenant-admin"], view: UsagePage },
  { key: "rollouts", title: "Rollouts", roles: READERS, view: Rollouts },
  { key: "policies", title: "Policies", roles: READERS, view: Policies },
  { key: "cache", title: "Cache", roles: [...READERS, "tenant-admin"], view: Cache },
  { key: "guards", title: "Guards", roles: [...READERS, "tenant-admin"], view: Guards },
  { key: "overload", title: "Overload", roles: READERS, view: Overload },
  { key: "charts", title: "Charts", roles: READERS, view: Charts },
  { key: "health", title: "Gateway", roles: READERS, view: Health },
];
