// SPDX-License-Identifier: Apache-2.0
// The rate limiter: never more than the burst and one each gap, and no less to one who waits.
module fide_rate_limiter_tb;
`include "fide_bench.svh"

  localparam int unsigned ClkNs = 4;
  logic clear, allow, take, ask;
  logic [63:0] now;
  logic [31:0] gap;
  logic [7:0] burst;
  fide_rate_limiter dut (
    .clk_i(clk), .rst_ni(rst_n), .clear_i(clear), .time_i(now), .gap_ns_i(gap), .burst_i(burst), .allow_o(allow), .take_i(take)
  );

  logic [63:0] taken [$], idle_since;
  int unsigned refused = 0, paused = 0;

  // Restarted with other settings: one request may come at once.
  task automatic restart(input logic [31:0] gap_ns, input logic [7:0] at_once);
    {clear, take} = 2'b10;
    gap = gap_ns;
    burst = at_once;
    // At another time; a restart counts from the present one.
    now = draw64() >> 1;
    settle();
    tick();
    now += ClkNs;
    clear = 1'b0;
    taken.delete();
    idle_since = now;
  endtask

  initial begin
    {clear, take} = '0;
    {gap, burst} = {32'd0, 8'd1};
    now = 64'd1_000;
    idle_since = now;
    reset();
    for (int unsigned run = 0; run < 200; run++) begin
      restart((run % 10 == 0) ? 32'd0 : 32'd4 + below(200), 8'(1 + below((run % 7 == 0) ? 200 : 6)));
      for (int unsigned n = 0; n < 300; n++) begin
        // Bursts of requests with pauses between them.
        ask = (n % 100 < 60) ? !one_in(3) : one_in(40);
        take = 1'b0;
        settle();
        take = ask && allow;
        if (gap == 0) `CHECK(allow, "without a limit all are allowed")
        if (gap != 0 && now - idle_since > 64'(gap) + 2 * ClkNs) begin
          paused++;
          `CHECK(allow, "one who waited for the gap is allowed")
        end
        if (ask && !allow) refused++;
        if (take) begin
          for (int unsigned k = 0; gap != 0 && k < taken.size(); k++) begin
            `CHECK(64'(taken.size() - k) <= 64'(burst) + (now - taken[k]) / 64'(gap), "more than the burst and one each gap")
          end
          taken.push_back(now);
          idle_since = now;
        end
        settle();
        tick();
        now += ClkNs;
      end
    end
    // Any gap: the one request that may come at once, then none until the gap has passed, however long it is.
    for (int unsigned run = 0; run < 400; run++) begin
      restart($urandom() | 32'd1024, 8'($urandom()) | 8'd1);
      take = 1'b1;
      settle();
      `CHECK(allow, "one at once behind a restart")
      tick();
      take = 1'b0;
      now += 64'(gap) - 64'd8;
      settle();
      `CHECK(!allow, "none before the gap has passed")
      tick();
      now += 64'd12 + (one_in(2) ? draw64() >> 2 : 64'd0);
      settle();
      tick();
      now += ClkNs;
      settle();
      `CHECK(allow, "one behind the gap")
      // Tokens are made up to the burst, one a clock.
      now += draw64() >> 2;
      repeat (1 + below(300)) tick();
    end
    // After a long pause as many as the burst in as many clocks.
    restart(32'd40, 8'd5);
    repeat (200) begin
      tick();
      now += ClkNs;
    end
    for (int unsigned n = 0; n < 6; n++) begin
      settle();
      `CHECK(allow == (n < 5), "the burst, and not one more")
      take = allow;
      tick();
      now += ClkNs;
      take = 1'b0;
    end
    `CHECK(refused > 1_000 && paused > 1_000, "requests were refused, and pauses were made")
    done("fide_rate_limiter");
  end
endmodule
