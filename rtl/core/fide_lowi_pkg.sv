// SPDX-License-Identifier: Apache-2.0
// Types shared by the modules of the LOWI engine. Widths here are upper bounds; the modules' parameters
// say how much of them is used.
package fide_lowi_pkg;

  localparam int unsigned RankW = 4;   // at most 16 members
  localparam int unsigned PathW = 3;   // at most 8 paths
  localparam int unsigned BufW  = 6;   // at most 64 payload buffers
  localparam int unsigned LenW  = 11;  // bytes of a round and its batch
  localparam int unsigned DurW  = 48;  // durations; points in time have 64 bits
  localparam int unsigned EvW = 272;     // $bits(ev_t), which Yosys cannot tell
  localparam int unsigned DecideW = 150; // $bits(decide_t)

  // Why the engine stopped: the numbers of STATUS.HALTED.
  typedef enum logic [2:0] {
    HaltNone     = 3'd0,
    HaltFault    = 3'd1,  // a copy is missing, or the network is at fault
    HaltMissing  = 3'd2,  // a whole broadcast is missing
    HaltExpelled = 3'd3,  // this member was skipped, or too late
    HaltLeft     = 3'd4,  // it left, as decided
    HaltCapacity = 3'd5   // more rounds in flight than the engine holds
  } halt_e;

  typedef enum logic [2:0] {
    EvCopy    = 3'd0,
    EvExit    = 3'd1,
    EvReady   = 3'd2,
    EvCrash   = 3'd3,  // a certain report, from the control software
    EvMembers = 3'd4,  // members after a reconfiguration entry
    EvFault   = 3'd5,  // the control software saw the network fail
    EvStart   = 3'd6
  } ev_kind_e;

  // How a start is to be read: START.MODE.
  typedef enum logic [1:0] {
    StartTogether  = 2'd0,
    StartOnMessage = 2'd1,
    StartJoin      = 2'd2
  } start_e;

  typedef struct packed {
    ev_kind_e           kind;
    logic [RankW-1:0]   rank;
    logic [PathW-1:0]   path;
    logic [63:0]        round;
    logic [63:0]        inst;
    logic [63:0]        sent_ns;
    logic [31:0]        digest;     // of everything behind the group's head
    logic               has_batch;
    logic               barrier;    // the entry changes members or engine
    logic [LenW-1:0]    len;        // bytes behind the group's head
    logic [BufW-1:0]    buffer;
    logic               has_buffer;
    logic [15:0]        members;    // EvMembers
    start_e             start;      // EvStart
  } ev_t;

  // A round that leaves.
  typedef struct packed {
    logic [63:0] round;
    logic [63:0] inst;
    logic [63:0] sent_ns;
    logic        has_batch;
  } speak_t;

  // A decision in the order of instances.
  typedef struct packed {
    logic             own;      // its bytes are in the request FIFO, not in a receive buffer
    logic [RankW-1:0] leader;
    logic [BufW-1:0]  buffer;
    logic [LenW-1:0]  len;
    logic [63:0]      round;
    logic [63:0]      inst;
  } decide_t;

  // Settings that do not change while the engine runs. The waits are in fide_lowi_core's ports.
  typedef struct packed {
    logic [RankW-1:0] me;
    logic [15:0]      members;      // at the start
    logic [7:0]       paths;        // one bit for each path in use
    logic [1:0]       depth;        // instances begun within Δ_I, less one
    logic             hurry;
    logic             exit_together;
    logic [DurW-1:0]  flight_ns;    // Δ_I by any clock
    logic [DurW-1:0]  late_ns;
    logic [19:0]      drift_step;   // 2 · drift_ppm · ClkNs
    logic [63:0]      begin_round;
    logic [RankW-1:0] begin_leader;
    logic [63:0]      begin_next;
  } cfg_t;

  // What can be read of the core, for registers and co-simulation.
  typedef struct packed {
    logic             running;
    halt_e            halted;
    logic             leads;        // this member leads
    logic             has_leader;
    logic [RankW-1:0] leader;
    logic             awaiting;     // members are to be set
    logic             heard;        // the group has started
    logic             unsettled;
    logic [RankW:0]   slot;
    logic [63:0]      round;
    logic [63:0]      next;
    logic [63:0]      decided;
    logic [15:0]      members;
    logic [15:0]      crashed;
    logic             tells_exit;
    logic             tells_ready;
    logic [RankW-1:0] ready_to;
    logic [31:0]      refused;
    logic             step_live;    // timers and events are taken at the present time in this clock
    logic             step_event;   // an event is taken
    logic             step_left;    // a round that has left is taken
  } state_t;

  // Why a frame was dropped before the core saw it: indices of the DROPPED counters.
  typedef enum logic [3:0] {
    DropShort      = 4'd0,
    DropOversize   = 4'd1,
    DropMagic      = 4'd2,
    DropVersion    = 4'd3,
    DropCluster    = 4'd4,
    DropKey        = 4'd5,
    DropTag        = 4'd6,
    DropService    = 4'd7,   // not a frame of this group's engine
    DropGeneration = 4'd8,
    DropMember     = 4'd9,
    DropPath       = 4'd10,
    DropMalformed  = 4'd11,
    DropTooLarge   = 4'd12,
    DropRoom       = 4'd13,  // no buffer, or a FIFO is full
    DropNotLeader  = 4'd14,  // a request to a member that does not lead
    DropRate       = 4'd15   // a request over the rate
  } drop_e;
  localparam int unsigned Drops = 16;

  function automatic logic [4:0] ones16(input logic [15:0] set);
    ones16 = '0;
    for (int unsigned i = 0; i < 16; i++) ones16 = ones16 + {4'b0, set[i]};
  endfunction

  // The members below `rank`.
  function automatic logic [15:0] below(input logic [RankW-1:0] rank);
    below = (16'd1 << rank) - 16'd1;
  endfunction

  function automatic logic [15:0] only(input logic [RankW-1:0] rank);
    only = 16'd1 << rank;
  endfunction

  // The lowest rank of a set that is not empty.
  function automatic logic [RankW-1:0] lowest(input logic [15:0] set);
    lowest = '0;
    for (int i = 15; i >= 0; i--) if (set[i]) lowest = RankW'(i);
  endfunction

endpackage
